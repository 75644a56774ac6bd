/* Every operator, variant and case in the harness, and broken kernels that it must detect. */
#include "base/cpu.h"
#include "op/element.h"
#include "op/harness/case.h"
#include "op/harness/check.h"
#include "op/masked_softmax/masked_softmax.h"
#include "op/paged_decode/paged_decode.h"
#include "op/rms_norm/rms_norm.h"
#include "op/rope/rope.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "test.h"

enum { SEED = 1, PATIENCE_MS = 60000 };

/* A sanitizer makes each check slow. There a variant takes every tenth case, neighbours the
 * others; numbers are checked on all cases without one. */
enum { STEP = SANITIZED ? 10 : 1 };

/* --- what we ship ---------------------------------------------------------------------------- */

/* Checks one kernel on all cases that it accepts; counts what failed and says why. */
static int count_failures(const op_info *op, const op_variant *variant)
{
    int failed = 0;
    const int first = variant ? (int)(variant - op->variants) % STEP : 0;
    for (const char *const *text = op->cases; *text; text++) {
        if (variant && (text - op->cases) % STEP != first) continue;
        qp_error error;
        op_case about;
        check_verdict verdict;
        assert_ok(op_case_parse(op, *text, &about, &error));
        if (variant && !op_case_accepted(op, &about, variant)) continue;
        check_in_child(op, variant, *text, SEED, PATIENCE_MS, &verdict);
        if (verdict.status == CHECK_PASSED) continue;
        print_error("%s %s: %s: %s\n", op->name, variant ? variant->name : "reference",
                    check_status_name(verdict.status), verdict.detail);
        failed++;
    }
    return failed;
}

static void all_references_pass(void **state)
{
    (void)state;
    int failed = 0;
    for (int code = 0; code < OP_COUNT; code++)
        failed += count_failures(op_get((op_code)code), NULL);
    assert_int_equal(failed, 0);
}

static void all_variants_of_this_machine_pass(void **state)
{
    (void)state;
    int failed = 0;
    uint32_t features = cpu_features(0) | OP_X_BITS;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        for (const op_variant *variant = op->variants; variant && variant->name; variant++) {
            if ((variant->needs & ~features) == 0) failed += count_failures(op, variant);
        }
    }
    assert_int_equal(failed, 0);
}

static void all_workloads_can_be_read(void **state)
{
    (void)state;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        for (const char *const *text = op->workloads; text && *text; text++) {
            qp_error error;
            op_case about;
            assert_non_null(strstr(*text, ": "));
            assert_ok(op_case_parse(op, *text, &about, &error));
        }
    }
}

/* --- kernels that are wrong ------------------------------------------------------------------ */

/* A row of rms_norm in float32, right in itself; the broken kernels are made of it. */
static float norm_scale(const op_call *call, int64_t row)
{
    const tensor *x = &call->tensors[RMS_NORM_X];
    float sum = 0;
    for (int64_t i = 0; i < x->shape[1]; i++) {
        float value = (float)element_load(x->type, tensor_row(x, row), i);
        sum += value * value;
    }
    return 1 / sqrtf(sum / (float)x->shape[1] + (float)call->params[RMS_NORM_EPS]);
}

static double norm_value(const op_call *call, int64_t row, int64_t i, float scale)
{
    const tensor *x = &call->tensors[RMS_NORM_X], *w = &call->tensors[RMS_NORM_WEIGHT];
    double value = (float)element_load(x->type, tensor_row(x, row), i) * scale;
    if (call->params[RMS_NORM_ROUND_FIRST] != 0) value = element_round(x->type, value);
    return (float)value * (float)element_load(w->type, w->data, i);
}

static void norm_store(const op_call *call, int64_t row, int64_t i, double value)
{
    const tensor *out = &call->tensors[RMS_NORM_OUT];
    element_store(out->type, tensor_row(out, row), i, value);
}

#define FOR_ROWS(call, row) for (int64_t row = call->begin; row < call->end; row++)
#define FOR_ROW(call, i)    for (int64_t i = 0; i < call->tensors[RMS_NORM_X].shape[1]; i++)

/* The yardstick: this one is right, so what follows fails for its fault alone. */
static void norm_right(const op_call *call)
{
    FOR_ROWS(call, row)
    {
        float scale = norm_scale(call, row);
        FOR_ROW(call, i) norm_store(call, row, i, norm_value(call, row, i, scale));
    }
}

static void norm_tail_off_by_one(const op_call *call)
{
    FOR_ROWS(call, row)
    {
        float scale = norm_scale(call, row);
        int64_t n = call->tensors[RMS_NORM_X].shape[1];
        if (n % 8) n--; /* after the vectors of 8 */
        for (int64_t i = 0; i < n; i++)
            norm_store(call, row, i, norm_value(call, row, i, scale));
    }
}

static void norm_eps_outside_the_root(const op_call *call)
{
    op_call without = *call;
    without.params[RMS_NORM_EPS] = 0;
    FOR_ROWS(call, row)
    {
        float scale = 1 / (1 / norm_scale(&without, row) + (float)call->params[RMS_NORM_EPS]);
        FOR_ROW(call, i) norm_store(call, row, i, norm_value(call, row, i, scale));
    }
}

/* Stores whole vectors of 8; the next row hides that, but the last row has none after it. */
static void norm_writes_past_the_row(const op_call *call)
{
    FOR_ROWS(call, row)
    {
        float scale = norm_scale(call, row);
        int64_t n = call->tensors[RMS_NORM_X].shape[1];
        for (int64_t i = 0; i < (n + 7) / 8 * 8; i++)
            norm_store(call, row, i, i < n ? norm_value(call, row, i, scale) : 0);
    }
}

/* Threads share what each should have for itself. */
static void norm_races(const op_call *call)
{
    static _Atomic float shared;
    FOR_ROWS(call, row)
    {
        shared = norm_scale(call, row);
        for (int i = 0; i < 20; i++)
            sched_yield();
        float scale = shared;
        FOR_ROW(call, i) norm_store(call, row, i, norm_value(call, row, i, scale));
    }
}

/* beta = 0 is no reason to read what was never written. */
static void norm_reads_its_output(const op_call *call)
{
    const tensor *out = &call->tensors[RMS_NORM_OUT];
    FOR_ROWS(call, row)
    {
        float scale = norm_scale(call, row);
        FOR_ROW(call, i)
        {
            double before = element_load(out->type, tensor_row(out, row), i);
            norm_store(call, row, i, norm_value(call, row, i, scale) + 0 * before);
        }
    }
}

static void norm_truncates(const op_call *call)
{
    const tensor *out = &call->tensors[RMS_NORM_OUT];
    FOR_ROWS(call, row)
    {
        float scale = norm_scale(call, row);
        FOR_ROW(call, i)
        {
            float value = (float)norm_value(call, row, i, scale);
            if (out->type == DTYPE_BF16)
                ((uint16_t *)tensor_row(out, row))[i] = (uint16_t)(float_bits(value) >> 16);
            else
                norm_store(call, row, i, value);
        }
    }
}

/* Adds up in the order in which it happens to be called. */
static void norm_sums_in_any_order(const op_call *call)
{
    static _Atomic int turn;
    const tensor *x = &call->tensors[RMS_NORM_X];
    FOR_ROWS(call, row)
    {
        float sum = 0;
        bool forwards = turn++ % 2;
        FOR_ROW(call, i)
        {
            int64_t at = forwards ? i : x->shape[1] - 1 - i;
            float value = (float)element_load(x->type, tensor_row(x, row), at);
            sum += value * value;
        }
        float scale = 1 / sqrtf(sum / (float)x->shape[1] + (float)call->params[RMS_NORM_EPS]);
        FOR_ROW(call, i) norm_store(call, row, i, norm_value(call, row, i, scale));
    }
}

static void norm_sleeps(const op_call *call)
{
    sleep(30);
    norm_right(call);
}

static void norm_crashes(const op_call *call)
{
    norm_right(call);
    raise(SIGSEGV);
}

static void norm_changes_its_input(const op_call *call)
{
    norm_right(call);
    const tensor *x = &call->tensors[RMS_NORM_X];
    FOR_ROWS(call, row) element_store(x->type, tensor_row(x, row), 0, 7);
}

static void norm_writes_the_wrong_type(const op_call *call)
{
    op_call other = *call;
    tensor *out = &other.tensors[RMS_NORM_OUT];
    if (out->type == DTYPE_BF16) out->type = DTYPE_F16;
    norm_right(&other);
}

static void norm_ignores_strides(const op_call *call)
{
    op_call packed = *call;
    tensor *x = &packed.tensors[RMS_NORM_X];
    *x = tensor_make(x->data, x->type, x->rank, x->shape);
    norm_right(&packed);
}

/* Counts rows from the start of the slice instead of from the start of the tensor. */
static void norm_ignores_begin(const op_call *call)
{
    op_call slice = *call;
    slice.end -= slice.begin;
    slice.begin = 0;
    norm_right(&slice);
}

static void rope_swaps_the_order(const op_call *call)
{
    op_call other = *call;
    other.params[ROPE_INTERLEAVED] = !call->params[ROPE_INTERLEAVED];
    rope_reference(&other);
}

/* The last sequence gets one entry more of kv_indices than there is. */
static void decode_reads_past_the_page_table(const op_call *call)
{
    int32_t borders[64];
    op_call other = *call;
    tensor *indptr = &other.tensors[PAGED_DECODE_KV_INDPTR];
    size_t n = (size_t)indptr->shape[0];
    assert_true(n <= sizeof borders / sizeof *borders);
    memcpy(borders, indptr->data, n * sizeof *borders);
    if (n > 1) borders[n - 1]++;
    indptr->data = borders;
    paged_decode_reference(&other);
}

static void softmax_overruns_its_scratch(const op_call *call)
{
    masked_softmax_reference(call);
    if (call->begin < call->end)
        ((double *)call->scratch)[call->tensors[MASKED_SOFTMAX_SCORES].shape[3]] = 1;
}

/* Finds the first case that the kernel fails on. */
static check_verdict first_failure(const op_info *op, op_kernel *kernel, int timeout_ms)
{
    op_variant candidate = {.name = "candidate", .kernel = kernel};
    check_verdict verdict = {0};
    for (const char *const *text = op->cases; *text; text++) {
        check_in_child(op, &candidate, *text, SEED, timeout_ms, &verdict);
        if (verdict.status != CHECK_PASSED) break;
    }
    return verdict;
}

static void broken_kernels_are_caught(void **state)
{
    (void)state;
    static const struct {
        const op_info *op;
        op_kernel *kernel;
        check_status expected;
        const char *says;
    } plants[] = {
        {&op_rms_norm, norm_right, CHECK_PASSED, ""},
        {&op_rms_norm, norm_tail_off_by_one, CHECK_INCORRECT_NUMERICAL, "out[0, 110] was not"},
        {&op_rms_norm, norm_eps_outside_the_root, CHECK_INCORRECT_NUMERICAL, "out["},
        {&op_paged_decode, decode_reads_past_the_page_table, CHECK_INCORRECT_NUMERICAL, "out["},
        {&op_rms_norm, norm_writes_past_the_row, CHECK_RUNTIME_ERROR, "after the end"},
        {&op_rms_norm, norm_races, CHECK_INCORRECT_NUMERICAL, "threads"},
        {&op_rms_norm, norm_reads_its_output, CHECK_INCORRECT_NUMERICAL, "out[0, 0]"},
        {&op_rms_norm, norm_truncates, CHECK_INCORRECT_NUMERICAL, "towards zero"},
        {&op_rope, rope_swaps_the_order, CHECK_INCORRECT_NUMERICAL, "q["},
        {&op_rms_norm, norm_sums_in_any_order, CHECK_INCORRECT_NUMERICAL, "before"},
        {&op_rms_norm, norm_crashes, CHECK_RUNTIME_ERROR, "signal 11"},
        {&op_rms_norm, norm_changes_its_input, CHECK_RUNTIME_ERROR, "changed x[0, 0]"},
        {&op_rms_norm, norm_writes_the_wrong_type, CHECK_INCORRECT_DTYPE, "as F16"},
        {&op_rms_norm, norm_ignores_strides, CHECK_INCORRECT_NUMERICAL, "x+16"},
        {&op_rms_norm, norm_ignores_begin, CHECK_INCORRECT_NUMERICAL, "unit by unit"},
        {&op_masked_softmax, softmax_overruns_its_scratch, CHECK_RUNTIME_ERROR, "scratch"},
    };
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        check_verdict verdict = first_failure(plants[i].op, plants[i].kernel, PATIENCE_MS);
        if (verdict.status != plants[i].expected || !strstr(verdict.detail, plants[i].says))
            fail_msg("plant %zu: %s: %s", i, check_status_name(verdict.status), verdict.detail);
    }
}

static void a_hanging_kernel_is_a_timeout(void **state)
{
    (void)state;
    check_verdict verdict = first_failure(&op_rms_norm, norm_sleeps, 200);
    assert_int_equal(verdict.status, CHECK_TIMEOUT);
    assert_non_null(strstr(verdict.detail, "200 ms"));
    assert_string_equal(check_status_name(verdict.status), "TIMEOUT");
}

/* --- cases ----------------------------------------------------------------------------------- */

static void cases_say_what_is_wrong_with_them(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"n_tokens=1", "hidden_size"},
        {"n_tokens=1 hidden_size=4 rows=3", "no axis"},
        {"n_tokens=-1 hidden_size=4", "whole number"},
        {"n_tokens=1.5 hidden_size=4", "whole number"},
        {"n_tokens=1 hidden_size=4 eps=small", "takes a number"},
        {"n_tokens=1 hidden_size=4 x:Q4_0", "not a type"},
        {"n_tokens=1 hidden_size=4 x:-", "not optional"},
        {"n_tokens=1 hidden_size=4 y:F16", "no tensor"},
        {"n_tokens=1 hidden_size=4 x+a", "number of elements"},
        {"n_tokens=1 hidden_size=4 x@10", "last one last"},
        {"n_tokens=1 hidden_size=4 x@0213", "2 dimensions"},
        {"n_tokens=1 hidden_size=4 out=weight", "cannot lie"},
        {"n_tokens=1 hidden_size=4 out=out", "share"},
        {"n_tokens=1 hidden_size=4 out", "expected ="},
        {"n_tokens=2000000000 hidden_size=2000000000", "too large"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qp_error error = {0};
        op_case about;
        assert_int_equal(op_case_parse(&op_rms_norm, bad[i].text, &about, &error), QP_INVALID);
        if (!strstr(error.message, bad[i].says)) fail_msg("%s: %s", bad[i].text, error.message);
    }
    check_verdict verdict;
    check_variant(&op_rms_norm, NULL, bad[0].text, SEED, &verdict);
    assert_int_equal(verdict.status, CHECK_INCORRECT_SHAPE);
}

static void cases_lay_tensors_out(void **state)
{
    (void)state;
    qp_error error;
    op_case about;
    assert_ok(op_case_parse(&op_masked_softmax,
                            "name: bs=2 n_heads=3 max_q_len=4 max_kv_len=5 scores@0213 mask+3 "
                            "probabilities=scores scale=0.5",
                            &about, &error));
    const case_tensor *scores = &about.tensors[MASKED_SOFTMAX_SCORES];
    const case_tensor *mask = &about.tensors[MASKED_SOFTMAX_MASK];
    assert_int_equal(scores->view.stride[3], 4);
    assert_int_equal(scores->view.stride[1], 5 * 4);
    assert_int_equal(scores->view.stride[2], 3 * 5 * 4);
    assert_int_equal(scores->view.stride[0], 4 * 3 * 5 * 4);
    assert_int_equal(mask->view.stride[1], (5 + 3) * 4);
    assert_int_equal(mask->view.stride[0], (4 * (5 + 3) + 3) * 4);
    assert_int_equal(about.tensors[MASKED_SOFTMAX_PROBABILITIES].view.stride[2], 3 * 5 * 4);
    assert_true(about.params[MASKED_SOFTMAX_SCALE] == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_references_pass),
        cmocka_unit_test(all_variants_of_this_machine_pass),
        cmocka_unit_test(all_workloads_can_be_read),
        cmocka_unit_test(broken_kernels_are_caught),
        cmocka_unit_test(a_hanging_kernel_is_a_timeout),
        cmocka_unit_test(cases_say_what_is_wrong_with_them),
        cmocka_unit_test(cases_lay_tensors_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
