/* The vector kernels: each against its operator's cases and some of its own, and what they promise
 * beyond that: the same bits in every width, from every cut of a prompt, for every neighbour. */
#include "op/harness/case.h"
#include "op/harness/check.h"
#include "op/harness/compare.h"
#include "op/paged_decode/paged_decode.h"
#include "op/paged_prefill/paged_prefill.h"
#include "op/run.h"

#include "base/cpu.h"
#include "op_test.h"

#include <math.h>

/* Shapes that the operators' own cases leave out: full registers, tails of every kind of loop. */
static const struct {
    const op_info *op;
    const char *text;
} extra[] = {
    {&op_rms_norm, "n_tokens=3 hidden_size=2048"},
    {&op_rms_norm, "n_tokens=2 hidden_size=577 weight:F16 out:BF16"},
    {&op_add_rms_norm, "n_tokens=3 hidden_size=2048"},
    {&op_add_rms_norm, "n_tokens=3 hidden_size=83 x:F16 residual:BF16"},
    {&op_silu_and_mul, "n_tokens=3 intermediate_size=1536"},
    {&op_rope, "n_tokens=3 n_heads=9 n_kv_heads=3 head_dim=80 rotary_dim=44 max_positions=9 "
               "interleaved=1"},
    {&op_rope,
     "n_tokens=3 n_heads=9 n_kv_heads=3 head_dim=80 rotary_dim=44 max_positions=9 q:BF16"},
    {&op_paged_prefill, "n_tokens=150 n_sequences=2 n_heads=6 n_kv_heads=2 head_dim=64 n_pages=40 "
                        "page_size=16 n_kv_indices=36 k_cache:F16 v_cache:F16 k_cache@0213 "
                        "v_cache@0213"},
    {&op_paged_prefill, "n_tokens=70 n_sequences=1 n_heads=10 n_kv_heads=2 head_dim=80 n_pages=9 "
                        "page_size=16 n_kv_indices=9 k_cache:BF16"},
    {&op_paged_prefill, "n_tokens=3 n_sequences=1 n_heads=50 n_kv_heads=1 head_dim=20 n_pages=9 "
                        "page_size=16 n_kv_indices=9"},
    {&op_paged_decode, "n_sequences=2 n_heads=16 n_kv_heads=2 head_dim=128 n_pages=40 page_size=16 "
                       "n_kv_indices=36 k_cache:F16 v_cache:F16 k_cache@0213 v_cache@0213"},
    {&op_paged_decode, "n_sequences=1 n_heads=60 n_kv_heads=20 head_dim=64 n_pages=40 page_size=7 "
                       "n_kv_indices=36 k_cache:F16 v_cache:F16"},
    {&op_ragged_prefill, "n_tokens=130 n_kv_tokens=130 n_sequences=1 n_heads=4 n_kv_heads=4 "
                         "head_dim=24"},
};

static void check_case(const op_info *op, const op_variant *variant, const char *text)
{
    check_verdict verdict;
    check_variant(op, variant, text, 1, &verdict);
    if (verdict.status != CHECK_PASSED)
        fail_msg("%s %s: %s: %s", op->name, variant->name, check_status_name(verdict.status),
                 verdict.detail);
}

static void variants_pass_further_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        for (const op_variant *v = extra[i].op->variants; v->name; v++) {
            if ((v->needs & ~cpu_features(0)) == 0) check_case(extra[i].op, v, extra[i].text);
        }
    }
}

/* --- every width gives the same bits --------------------------------------------------------- */

static void compare_widths(const op_info *op, const char *text)
{
    op_case about;
    qp_error error;
    fixture f;
    snapshot first = {0};
    int runs = 0;
    assert_ok(op_case_parse(op, text, &about, &error));
    assert_ok(fixture_create(&f, op, &op->variants[0], &about, 0, &error));
    assert_ok(fixture_fill(&f, FILL_NORMAL, 3, &error));
    for (const op_variant *v = op->variants; v->name; v++) {
        if (v->needs & ~cpu_features(0) || !op_case_accepted(op, &about, v)) continue;
        char detail[256];
        fixture_arm(&f, POISON_NAN);
        op_run(op, v->kernel, &f.call, NULL, fixture_scratch(&f), f.scratch_stride);
        if (runs++ == 0)
            assert_ok(snapshot_create(&f, &first, &error));
        else if (!snapshot_equal(&f, &first, detail, sizeof detail))
            fail_msg("%s %s: %s: %s", op->name, v->name, text, detail);
    }
    if (runs > 0) snapshot_destroy(&first);
    fixture_destroy(&f);
}

static void widths_give_the_same_bits(void **state)
{
    (void)state;
    for (int code = 0; code < OP_COUNT; code++) {
        const op_info *op = op_get((op_code)code);
        if (code == OP_LINEAR || !op->variants) continue; /* linear has a suite of its own */
        for (const char *const *text = op->cases; *text; text++)
            compare_widths(op, *text);
        for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
            if (extra[i].op == op) compare_widths(op, extra[i].text);
        }
    }
}

/* --- attention does not see how it is called ------------------------------------------------- */

enum { LENGTH = 150, HEADS = 6, KV_HEADS = 2, HEAD_DIM = 64, PAGE = 16, PAGES = 24 };

/* One sequence's queries and cache, its pages in no order. */
typedef struct conversation {
    tensor q, k_cache, v_cache, pages;
} conversation;

static conversation conversation_make(dtype kv_type)
{
    conversation c = {.q = random_tensor(DTYPE_F32, 1, SHAPE(LENGTH, HEADS, HEAD_DIM)),
                      .k_cache = random_tensor(kv_type, 2, SHAPE(PAGES, PAGE, KV_HEADS, HEAD_DIM)),
                      .v_cache = random_tensor(kv_type, 3, SHAPE(PAGES, PAGE, KV_HEADS, HEAD_DIM)),
                      .pages = zeros(DTYPE_I32, SHAPE(PAGES))};
    for (int i = 0; i < PAGES; i++)
        ((int32_t *)c.pages.data)[i] = i * 7 % PAGES;
    return c;
}

/* Runs `op` on units [begin, end), or on all where end is 0. */
static void run_kernel(const op_info *op, op_kernel *kernel, op_call call, int64_t begin,
                       int64_t end)
{
    assert_binds(op, &call);
    call.begin = begin;
    call.end = end ? end : op->units(&call);
    call.scratch = malloc(op->scratch_bytes(&call));
    kernel(&call);
    free(call.scratch);
}

/* Tokens [first, last) as one chunk of the conversation, behind a sequence of one token that reads
 * the same cache if there is to be a neighbour; in slices of `slice` units. */
static void attend(const conversation *c, op_kernel *kernel, int64_t first, int64_t last,
                   bool neighbour, int64_t slice, tensor *out)
{
    int before = neighbour, used = (int)((last + PAGE - 1) / PAGE), count = (int)(last - first);
    tensor q = zeros(DTYPE_F32, SHAPE(count + before, HEADS, HEAD_DIM)), own = q;
    size_t token_bytes = HEADS * HEAD_DIM * sizeof(float);
    own.data = tensor_row(&q, before);
    memcpy(own.data, tensor_row(&c->q, first), (size_t)count * token_bytes);
    tensor page_refs = zeros(DTYPE_I32, SHAPE(used + before));
    memcpy((int32_t *)page_refs.data + before, c->pages.data, (size_t)used * sizeof(int32_t));
    int32_t last_length = (int32_t)(last - (used - 1) * PAGE);
    op_call call = {.tensors = {[PAGED_PREFILL_Q] = q,
                                [PAGED_PREFILL_K_CACHE] = c->k_cache,
                                [PAGED_PREFILL_V_CACHE] = c->v_cache,
                                [PAGED_PREFILL_KV_INDICES] = page_refs,
                                [PAGED_PREFILL_OUT] = q},
                    .params = {[PAGED_PREFILL_CAUSAL] = 1}};
    if (neighbour) {
        call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, 1, 1 + count);
        call.tensors[PAGED_PREFILL_KV_INDPTR] = INDICES(0, 1, 1 + used);
        call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN] = INDICES(5, last_length);
    } else {
        call.tensors[PAGED_PREFILL_QO_INDPTR] = INDICES(0, count);
        call.tensors[PAGED_PREFILL_KV_INDPTR] = INDICES(0, used);
        call.tensors[PAGED_PREFILL_KV_LAST_PAGE_LEN] = INDICES(last_length);
    }
    for (int64_t unit = 0, end = (count + before) * HEADS; unit < end; unit += slice)
        run_kernel(&op_paged_prefill, kernel, call, unit, unit + slice < end ? unit + slice : end);
    memcpy(tensor_row(out, first), own.data, (size_t)count * token_bytes);
}

/* The same tokens one by one with paged_decode. */
static void attend_decode(const conversation *c, op_kernel *kernel, tensor *out)
{
    for (int t = 0; t < LENGTH; t++) {
        int used = (t + PAGE) / PAGE;
        tensor q = tensor_slice(c->q, 0, t, 1), to = tensor_slice(*out, 0, t, 1);
        op_call call = {
            .tensors = {[PAGED_DECODE_Q] = q,
                        [PAGED_DECODE_K_CACHE] = c->k_cache,
                        [PAGED_DECODE_V_CACHE] = c->v_cache,
                        [PAGED_DECODE_KV_INDPTR] = INDICES(0, used),
                        [PAGED_DECODE_KV_INDICES] = indices(used, c->pages.data),
                        [PAGED_DECODE_KV_LAST_PAGE_LEN] = INDICES(t + 1 - (used - 1) * PAGE),
                        [PAGED_DECODE_OUT] = to}};
        run_kernel(&op_paged_decode, kernel, call, 0, 0);
    }
}

static void attention_does_not_see_chunks_slices_or_neighbours(void **state)
{
    (void)state;
    static const dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
    for (int v = 0; op_paged_prefill.variants[v].name; v++) {
        if (op_paged_prefill.variants[v].needs & ~cpu_features(0)) continue;
        op_kernel *prefill = op_paged_prefill.variants[v].kernel;
        for (int type = 0; type < 3; type++) {
            conversation c = conversation_make(types[type]);
            tensor whole = zeros(DTYPE_F32, SHAPE(LENGTH, HEADS, HEAD_DIM)),
                   other = copy_of(&whole);
            attend(&c, prefill, 0, LENGTH, false, LENGTH * HEADS, &whole);
            static const int chunks[] = {1, 7, 64, 149};
            for (int i = 0; i < 4; i++) {
                for (int64_t t = 0; t < LENGTH; t += chunks[i]) {
                    int64_t end = t + chunks[i] < LENGTH ? t + chunks[i] : LENGTH;
                    attend(&c, prefill, t, end, i % 2, 1 + 37 * i, &other);
                }
                assert_same_bits(&other, &whole);
            }
            attend_decode(&c, op_paged_decode.variants[v].kernel, &other);
            assert_same_bits(&other, &whole);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        op_test(variants_pass_further_cases),
        op_test(widths_give_the_same_bits),
        op_test(attention_does_not_see_chunks_slices_or_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
