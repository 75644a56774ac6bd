/* Comparisons of two machines: equal ones are found equal, and a planted difference is found and
 * named.
 */
#include "test.h"

#include "base/cpu.h"
#include "inspect/diff/diff.h"
#include "inspect/diff/diff_run.h"
#include "lower/lower.h"

#include <math.h>

static qp_error error;

/* --- through the printed answer -------------------------------------------------------------- */

static const char *diff_of(diff_options options, bool *equal)
{
    static strbuf text;
    strbuf_clear(&text);
    if (diff_print(&options, &text, equal, &error) != QP_OK)
        fail_msg("%s: %s", options.model, error.message);
    return strbuf_text(&text);
}

static void test_kernels_are_within_tolerance(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/models/llama-text.gguf",
                                         "golden/models/llama-gqa8-f16.gguf",
                                         "golden/models/llama-blocks32.gguf",
                                         "golden/models/llama-blocks256.gguf",
                                         "golden/models/internlm2-bias-dynamic",
                                         "golden/models/llama-dynamic",
                                         "synthetic:tiny:Q4_0",
                                         "synthetic:tiny:Q8_0",
                                         "synthetic:tiny:BF16"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            bool equal = false;
            const char *text = diff_of((diff_options){.model = models[i],
                                                      .threads = threads,
                                                      .singles = 2,
                                                      .fuse = threads != 1,
                                                      .kv_partitions = threads},
                                       &equal);
            if (!equal) fail_msg("%s on %d threads:\n%s", models[i], threads, text);
            assert_non_null(strstr(text, "the same bits"));
        }
    }
}

/* The plan of sums, whose passes hand cleared memory to one another, in every strategy. */
static void test_sums(void **state)
{
    (void)state;
    static const char *const models[] = {
        "golden/models/llama-gqa8-f16.gguf", "golden/models/internlm2-bias-dynamic",
        "golden/models/llama-blocks256.gguf", "synthetic:tiny:Q4_0", "synthetic:tiny:BF16"};
    for (int i = 0; i < 5; i++) {
        bool equal = false;
        diff_options options = {.model = models[i],
                                .b = i % 2 ? "serial" : "threads",
                                .threads = 3,
                                .chunk = 5,
                                .singles = 3,
                                .sums = true,
                                .kv_partitions = 1 + i,
                                .assignment = i};
        const char *text = diff_of(options, &equal);
        if (!equal) fail_msg("%s:\n%s", models[i], text);
        assert_non_null(strstr(text, "x_next"));
        assert_non_null(strstr(text, "the same bits"));
    }
}

/* The other way round, the roundings to 8 bits are a's. */
static void test_sides_may_change(void **state)
{
    (void)state;
    bool equal = false;
    const char *text = diff_of((diff_options){.model = "golden/models/llama-blocks32.gguf",
                                              .a = "threads",
                                              .b = "reference",
                                              .singles = 1},
                               &equal);
    if (!equal) fail_msg("%s", text);
}

static void test_schedules_keep_the_bits(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"reference", "serial"}, {"operators", "threads"}, {"reference", "reference"}};
    for (size_t i = 0; i < 3; i++) {
        bool equal = false;
        const char *text = diff_of((diff_options){.model = "golden/models/llama-blocks32.gguf",
                                                  .a = pairs[i][0],
                                                  .b = pairs[i][1],
                                                  .threads = 3,
                                                  .chunk = 5,
                                                  .singles = 2},
                                   &equal);
        if (!equal) fail_msg("%s against %s:\n%s", pairs[i][1], pairs[i][0], text);
        assert_non_null(strstr(text, "elements: equal"));
        assert_non_null(strstr(text, "16 tokens in 5 passes"));
    }
}

static void test_other_plans_and_schedules(void **state)
{
    (void)state;
    for (int setting = 0; setting < 2; setting++) {
        for (int assignment = 0; assignment < 5; assignment++) {
            bool equal = false;
            const char *text = diff_of((diff_options){.model = "golden/models/llama-gqa8-f16.gguf",
                                                      .a = "operators",
                                                      .threads = 3,
                                                      .n_tokens = 40,
                                                      .singles = 1,
                                                      .fuse = setting == 0,
                                                      .kv_partitions = 3,
                                                      .setting = setting,
                                                      .assignment = assignment},
                                       &equal);
            if (!equal) fail_msg("setting %d, assignment %d:\n%s", setting, assignment, text);
        }
    }
}

static void test_parts_of_a_pass(void **state)
{
    (void)state;
    bool equal = false;
    diff_options options = {.model = "golden/models/llama-text.gguf",
                            .after = "0.attn_qkv",
                            .stop = "1.rope",
                            .list = true};
    const char *text = diff_of(options, &equal);
    assert_true(equal);
    assert_null(strstr(text, "0.attn_qkv "));
    assert_non_null(strstr(text, "0.rope "));
    assert_non_null(strstr(text, "1.rope "));
    assert_null(strstr(text, "1.attention "));
    options = (diff_options){.model = "golden/models/llama-text.gguf", .layers = 1, .json = true};
    text = diff_of(options, &equal);
    assert_true(equal);
    assert_non_null(strstr(text, "\"layer\":0"));
    assert_null(strstr(text, "\"layer\":1"));
    assert_non_null(strstr(text, "\"step\":\"lm_head\""));
}

static void assert_refused(diff_options options, const char *part)
{
    strbuf text = {0};
    bool equal = false;
    options.model = "golden/models/llama-text.gguf";
    assert_int_equal(diff_print(&options, &text, &equal, &error), QP_INVALID);
    if (!strstr(error.message, part)) fail_msg("%s", error.message);
    strbuf_free(&text);
}

static void test_bad_requests(void **state)
{
    (void)state;
    static const int32_t beyond[] = {1, 1 << 20};
    assert_refused((diff_options){.after = "1.attn_qvk"}, "did you mean 1.attn_qkv?");
    assert_refused((diff_options){.after = "5.attn_qvk"}, "did you mean 0.attn_qkv?");
    assert_refused((diff_options){.after = "attn_qkv"}, "say 0.attn_qkv to 1.attn_qkv");
    assert_refused((diff_options){.after = "2.attn_qkv"}, "say 0.attn_qkv to 1.attn_qkv");
    assert_refused((diff_options){.stop = "0.lm_head"}, "say lm_head");
    assert_refused((diff_options){.stop = "xyzzy"}, "no step \"xyzzy\"");
    assert_refused((diff_options){.after = "lm_head", .stop = "0.rope"}, "nothing to compare");
    assert_refused((diff_options){.after = "sample"}, "nothing to compare");
    assert_refused((diff_options){.b = "treads"}, "reference, serial, threads, operators");
    assert_refused((diff_options){.layers = 3}, "the model has 2 layers");
    assert_refused((diff_options){.tokens = beyond, .n_tokens = 2}, "token 1 is 1048576");
    assert_refused((diff_options){.kv_type = "Q4_0"}, "KV cache");
}

/* --- planted differences --------------------------------------------------------------------- */

/* A machine that goes wrong in one place. */
typedef struct planted {
    machine inner;
    const program *program;
    int step, pass; /* where */
    int calls;      /* of that step */
    enum { PLANT_ELEMENT, PLANT_SKIP, PLANT_AT_ONCE } what;
    plan_tensor_id tensor;
    int64_t element;
    float by; /* added, relative to the value */
} planted;

static qp_status change(planted *p)
{
    const plan_tensor *t = &p->program->tensors[p->tensor];
    int64_t layer = p->program->steps[p->step].layer;
    unsigned char *data = malloc(t->bytes);
    assert_non_null(data);
    assert_ok(machine_read(&p->inner, p->tensor, layer, data, t->bytes, &error));
    if (t->type == DTYPE_F32) {
        float value;
        memcpy(&value, data + 4 * p->element, sizeof value);
        value += p->by * (fabsf(value) + 1);
        memcpy(data + 4 * p->element, &value, sizeof value);
    } else if (t->type == DTYPE_I64) {
        ((int64_t *)(void *)data)[p->element] += (int64_t)(p->by * 0x1p32F);
    } else {
        data[2 * p->element] ^= 1; /* the last bit of an F16 */
    }
    assert_ok(machine_write(&p->inner, p->tensor, layer, data, t->bytes, &error));
    free(data);
    return QP_OK;
}

static const char *planted_accepts(const void *self, const machine_request *request)
{
    const planted *p = self;
    return machine_accepts(&p->inner, request);
}

static qp_status planted_run(void *self, const machine_request *r, qp_error *e)
{
    planted *p = self;
    const int first = r->first, last = r->last ? r->last : p->program->logits_end;
    bool here = p->step >= first && p->step < last && p->calls++ == p->pass;
    if (p->what == PLANT_AT_ONCE) here = last - first > 1 && p->step >= first && p->step < last;
    if (here && p->what == PLANT_SKIP) return QP_OK;
    TRY(machine_pass(&p->inner, r, e));
    return here ? change(p) : QP_OK;
}

static qp_status planted_wait(void *self, int *passes, qp_error *e)
{
    (void)self, (void)e;
    *passes = 1;
    return QP_OK;
}

static qp_status planted_read(void *self, plan_tensor_id id, int64_t layer, void *data,
                              size_t bytes, qp_error *e)
{
    planted *p = self;
    return machine_read(&p->inner, id, layer, data, bytes, e);
}

static qp_status planted_write(void *self, plan_tensor_id id, int64_t layer, const void *data,
                               size_t bytes, qp_error *e)
{
    planted *p = self;
    return machine_write(&p->inner, id, layer, data, bytes, e);
}

static machine_kernel planted_kernel(const void *self, int node)
{
    const planted *p = self;
    return machine_kernel_of(&p->inner, node);
}

static const machine_type planted_type = {.name = "planted",
                                          .accepts = planted_accepts,
                                          .run = planted_run,
                                          .wait = planted_wait,
                                          .read = planted_read,
                                          .write = planted_write,
                                          .kernel = planted_kernel};

/* A small model with a plan for 8 tokens and the compared pair. */
typedef struct bench {
    model *model;
    program program;
    thread_pool *pool;
    machine_setup setup;
    machine a;
    planted b;
    machine planted;
    diff_report report;
} bench;

enum { TOKENS = 8 };

static void bench_open_as(bench *b, const char *path, const char *of, bool sums)
{
    *b = (bench){0};
    assert_ok(model_open(path, NULL, &b->model, &error));
    plan_options options = plan_default_options(model_get_config(b->model));
    options.max_tokens = options.context = options.max_outputs = TOKENS;
    options.page_size = 4;
    options.sums = sums;
    assert_ok(lower_build(model_get_config(b->model), b->model, &options, &b->program, &error));
    assert_ok(thread_pool_create(2, &b->pool, &error));
    b->setup =
        (machine_setup){.program = &b->program, .pool = b->pool, .cpu_features = cpu_features(0)};
    const machine_type *type;
    assert_ok(machine_type_find(of, &type, &error));
    assert_ok(machine_open(&machine_reference, &b->setup, &b->a, &error));
    assert_ok(machine_open(type, &b->setup, &b->b.inner, &error));
    b->b.program = &b->program;
    b->b.step = -1; /* nothing is planted yet */
    b->planted = (machine){&planted_type, &b->b};
}

static void bench_open(bench *b, const char *path, const char *of)
{
    bench_open_as(b, path, of, false);
}

static void bench_open_sums(bench *b, const char *path, const char *of)
{
    bench_open_as(b, path, of, true);
}

static void bench_close(bench *b)
{
    diff_report_free(&b->report);
    machine_close(&b->a);
    machine_close(&b->b.inner);
    thread_pool_destroy(b->pool);
    program_free(&b->program);
    model_close(b->model);
}

static const diff_report *bench_diff(bench *b, int first)
{
    static const int32_t tokens[TOKENS] = {5, 1, 200, 17, 17, 99, 3, 250};
    diff_request request = {.tokens = tokens,
                            .n_tokens = TOKENS,
                            .singles = 2,
                            .first = first,
                            .last = b->program.n_steps};
    diff_report_free(&b->report);
    b->b.calls = 0;
    assert_ok(diff_run(&b->setup, &b->a, &b->planted, &request, &b->report, &error));
    return &b->report;
}

static void plant(bench *b, const char *step, int pass, plan_tensor_id tensor, int64_t element,
                  float by)
{
    b->b.what = PLANT_ELEMENT;
    assert_ok(program_parse_step(&b->program, step, &b->b.step, &error));
    b->b.pass = pass;
    b->b.tensor = tensor;
    b->b.element = element;
    b->b.by = by;
}

static void assert_named(const bench *b, const char *step, const char *name, const char *index,
                         int pass)
{
    const diff_report *r = &b->report;
    char text[64];
    assert_false(r->equal);
    assert_true(r->first_wrong >= 0);
    const diff_row *row = &r->rows[r->first_wrong];
    assert_string_equal(program_step_label(&b->program, row->step, text, sizeof text), step);
    assert_string_equal(diff_row_name(&b->program, row, text, sizeof text), name);
    assert_string_equal(row->alone.first.index, index);
    assert_int_equal(row->alone.first.pass, pass);
    assert_int_equal(row->alone.wrong, 1);
    for (int i = 0; i < r->n_rows; i++) { /* later steps got a's values */
        if (i != r->first_wrong) assert_int_equal(r->rows[i].alone.wrong, 0);
    }
}

static void test_planted_elements_are_named(void **state)
{
    (void)state;
    static const char *const models[] = {"golden/models/llama-text.gguf", "synthetic:tiny:Q8_0"};
    for (size_t i = 0; i < 2; i++) {
        bench b;
        bench_open(&b, models[i], "threads");
        const int64_t hidden = b.program.config.hidden_size;
        assert_true(bench_diff(&b, 0)->equal);
        plant(&b, "1.ffn_down", 0, PLAN_X, 3 * hidden + 7, 1e-3F);
        bench_diff(&b, 0);
        assert_named(&b, "1.ffn_down", "x", "[3, 7]", 0);
        const diff_element *e = &b.report.rows[b.report.first_wrong].alone.first;
        assert_true(fabs(e->found - e->expected) > 9e-4 && e->tolerance < 1e-3);
        plant(&b, "0.attn_norm", 2, PLAN_X_NORM, 5, 1e-3F);
        bench_diff(&b, 0);
        assert_named(&b, "0.attn_norm", "x_", "[0, 5]", 2);
        plant(&b, "lm_head", 1, PLAN_LOGITS, 100, 1e-3F);
        bench_diff(&b, 0);
        assert_named(&b, "lm_head", "logits", "[0, 100]", 1);
        bench_close(&b);
    }
}

/* --- machines that run passes whole -------------------------------------------------------- */

/* The rest is gone when a pass has ended. */
static bool keeps_sums(plan_tensor_id id)
{
    return id == PLAN_SUMS || id == PLAN_SUMS_NEXT || id == PLAN_K_CACHE || id == PLAN_V_CACHE ||
           id == PLAN_LOGITS;
}

static const machine_type whole_type = {.name = "whole",
                                        .whole = true,
                                        .keeps = keeps_sums,
                                        .accepts = planted_accepts,
                                        .run = planted_run,
                                        .wait = planted_wait,
                                        .read = planted_read,
                                        .write = planted_write,
                                        .kernel = planted_kernel};

static const diff_report *bench_diff_whole(bench *b)
{
    static const int32_t tokens[TOKENS] = {5, 1, 200, 17, 17, 99, 3, 250};
    const diff_request request = {
        .tokens = tokens, .n_tokens = TOKENS, .singles = TOKENS, .last = b->program.logits_end};
    machine whole = {&whole_type, &b->b};
    diff_report_free(&b->report);
    b->b.calls = 0;
    assert_ok(diff_run(&b->setup, &b->a, &whole, &request, &b->report, &error));
    return &b->report;
}

/* Every step is judged by what the pass that is over has left of it, the first wrong one named. */
static void test_whole_passes(void **state)
{
    (void)state;
    static const char *const of[] = {"serial", "threads"};
    for (int i = 0; i < 2; i++) {
        bench b;
        char text[64];
        bench_open_sums(&b, "synthetic:tiny:BF16", of[i]);
        const int64_t hidden = b.program.config.hidden_size;
        const diff_report *r = bench_diff_whole(&b);
        assert_true(r->equal);
        assert_int_equal(r->n_rows, 2 + 2 * 4 + 1);
        assert_int_equal(r->logit_rows, TOKENS);
        plant(&b, "0.ffn", 2, PLAN_SUMS, 2 * hidden + 7, 1e-3F);
        r = bench_diff_whole(&b);
        assert_false(r->equal);
        const diff_row *row = &r->rows[r->first_wrong];
        assert_string_equal(program_step_label(&b.program, row->step, text, sizeof text), "0.ffn");
        assert_string_equal(row->alone.first.index, "[0, 7]");
        assert_int_equal(row->alone.first.pass, 2);
        assert_true(fabs(row->alone.first.found - row->alone.first.expected - 1e-3) < 1e-5);
        plant(&b, "embedding", 1, PLAN_SUMS_NEXT, 3, 1);
        r = bench_diff_whole(&b);
        assert_false(r->equal);
        assert_int_equal(r->rows[r->first_wrong].operand, 3);
        bench_close(&b);
    }
}

/* One bit of one cached value. */
static void test_planted_cache(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, "golden/models/llama-text.gguf", "threads");
    plant(&b, "1.attention", 0, PLAN_V_CACHE, 0, 0);
    bench_diff(&b, 0);
    const diff_row *row = &b.report.rows[b.report.first_wrong];
    assert_int_equal(program_tensor_of(&b.program, row->node, row->operand), PLAN_V_CACHE);
    assert_int_equal(b.program.steps[row->step].layer, 1);
    assert_string_equal(row->alone.first.index, "[0, 0, 0, 0]");
    bench_close(&b);
}

static void test_what_is_not_written_shows(void **state)
{
    (void)state;
    static const char *const steps[] = {"embedding", "0.attn_qkv", "1.ffn_up", "lm_head", "sample"};
    bench b;
    bench_open(&b, "golden/models/llama-text.gguf", "operators");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        plant(&b, steps[i], 1, PLAN_X, 0, 0);
        b.b.what = PLANT_SKIP;
        bench_diff(&b, 0);
        assert_true(b.report.first_wrong >= 0);
        assert_int_equal(b.report.rows[b.report.first_wrong].step, b.b.step);
        assert_int_equal(b.report.rows[b.report.first_wrong].alone.first.pass, 1);
    }
    bench_close(&b);
}

/* Right step by step, wrong without a stop in between: an order between steps that is not kept. */
static void test_at_once(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, "golden/models/llama-text.gguf", "threads");
    plant(&b, "lm_head", 0, PLAN_LOGITS, 3, 1e-3F);
    b.b.what = PLANT_AT_ONCE;
    bench_diff(&b, 0);
    assert_true(b.report.first_wrong < 0);
    assert_true(b.report.at_once_differs);
    assert_false(b.report.equal);
    assert_non_null(strstr(b.report.at_once, "logits"));
    bench_close(&b);
}

/* The same kernels have to give the same bits end to end, other kernels may drift. */
static void test_drift(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, "golden/models/llama-text.gguf", "serial");
    assert_true(bench_diff(&b, 0)->equal);
    assert_true(b.report.same_choice == TOKENS && b.report.logit_rows == TOKENS);
    int first;
    assert_ok(program_parse_step(&b.program, "1.attn_norm", &first, &error));
    plant(&b, "0.rope", 0, PLAN_ATTN, 0, 0.5F);
    assert_true(bench_diff(&b, first)->equal);  /* before what is compared */
    plant(&b, "1.rope", 3, PLAN_ATTN, 1, 0.5F); /* the first pass of the second round */
    bench_diff(&b, first);
    assert_true(b.report.first_wrong < 0);
    assert_true(b.report.first_drift >= 0);
    assert_int_equal(b.report.rows[b.report.first_drift].step, b.b.step);
    assert_string_equal(b.report.rows[b.report.first_drift].together.first.index, "[0, 0, 1]");
    assert_false(b.report.equal);
    bench_close(&b);
}

static void test_cancelled(void **state)
{
    (void)state;
    static volatile int cancel = 1;
    strbuf text = {0};
    bool equal;
    diff_options options = {.model = "golden/models/llama-text.gguf", .cancel = &cancel};
    assert_int_equal(diff_print(&options, &text, &equal, &error), QP_CANCELLED);
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_are_within_tolerance),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_sides_may_change),
        cmocka_unit_test(test_schedules_keep_the_bits),
        cmocka_unit_test(test_other_plans_and_schedules),
        cmocka_unit_test(test_parts_of_a_pass),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_planted_elements_are_named),
        cmocka_unit_test(test_planted_cache),
        cmocka_unit_test(test_whole_passes),
        cmocka_unit_test(test_what_is_not_written_shows),
        cmocka_unit_test(test_at_once),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
