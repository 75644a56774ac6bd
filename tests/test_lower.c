/* Rules: random sets of them give the results of the plan without any, on random small models; what
 * they refuse, and why; the engine's proof that nobody else reads what a rule removes. */
#include "lower/draft.h"

#include "base/hash.h"
#include "schedule_test.h"

#include <math.h>
#include <stdlib.h>

static qp_error error;

enum { CONTEXT = 64, ROUNDS = 30, FUSE_RULES = LOWER_RULE_output_sums };

/* ---- random sets of rules ------------------------------------------------------------------- */

typedef struct form {
    model_config config;
    plan_options options;
} form;

static int64_t random_between(int64_t low, int64_t high)
{
    static uint64_t n;
    return low + (int64_t)(hash_random(7, 0, n++) % (uint64_t)(high - low + 1));
}

static form random_form(const model *m)
{
    form f = {.config = *model_get_config(m)};
    if (random_between(0, 2) == 0) layer_set_add(&f.config.no_rope, random_between(0, 1));
    if (random_between(0, 2) == 0) {
        f.config.window = random_between(3, 40);
        layer_set_add(&f.config.windowed, random_between(0, 1));
    }
    f.options = small_options(&f.config);
    f.options.context = f.options.max_tokens = CONTEXT;
    f.options.kv_partitions = random_between(1, 4);
    return f;
}

/* Opens the form with rules, and runs some batches; the logits of all. */
static float *run_form(const char *path, const form *f, size_t *n)
{
    static const int64_t counts[][2] = {{17, 0}, {1, 5}, {9, 1}, {1, 1}};
    float *all = NULL;
    bench b = {0};
    *n = 0;
    assert_ok(model_open(path, NULL, &b.model, &error));
    assert_ok(lower_build(&f->config, b.model, &f->options, &b.program, &error));
    const machine_setup setup = {.program = &b.program};
    assert_ok(machine_open(&machine_reference, &setup, &b.machine, &error));
    assert_ok(batch_init(&b.batch, &b.program, &error));
    assert_ok(page_pool_init(&b.pages, b.program.options.n_pages, 4, &error));
    for (int i = 0; i < 2; i++)
        assert_ok(page_list_init(&b.lists[i], CONTEXT / 4, &error));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        bench_fill(&b, counts[i][0], counts[i][1]);
        bench_run(&b);
        const size_t more = (size_t)(batch_outputs(&b.batch) * f->config.vocab_size);
        all = realloc(all, (*n + more) * sizeof *all);
        memcpy(all + *n, machine_logits(&b.machine), more * sizeof *all);
        *n += more;
    }
    bench_close(&b);
    return all;
}

static double distance(const float *a, const float *b, size_t n)
{
    double sum = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(sum / norm);
}

static void random_rules_change_nothing(void **state)
{
    (void)state;
    static const char *const paths[] = {"synthetic:tiny:F32",         "synthetic:tiny-qwen2:F32",
                                        "synthetic:tiny-qwen3:F32",   "synthetic:tiny-smollm3:F32",
                                        "synthetic:tiny-mistral:F32", "synthetic:tiny-olmoe:F32"};
    for (int round = 0; round < ROUNDS; round++) {
        const char *path = paths[round % 6];
        model *m;
        size_t n, n_page;
        assert_ok(model_open(path, &(model_options){.sizes_only = true}, &m, &error));
        form f = random_form(m), page = f;
        assert_ok(lower_parse_rules("-all", &page.options, &error));
        f.options.fuse = random_between(0, 1);
        f.options.rules_added = (uint32_t)random_between(0, (1 << FUSE_RULES) - 1);
        f.options.rules_left_out = (uint32_t)random_between(0, (1 << LOWER_RULES) - 1);
        float *with = run_form(path, &f, &n), *without = run_form(path, &page, &n_page);
        assert_int_equal(n, n_page);
        if (distance(with, without, n) > 1e-6)
            fail_msg("%s with rules %x: the logits are %g from those without", path,
                     lower_rules_of(&f.options), distance(with, without, n));
        free(with);
        free(without);
        model_close(m);
    }
}

/* ---- refusals ------------------------------------------------------------------------------- */

static void expect_why(const char *path, const char *options, bool sums, const char *why)
{
    model *m;
    strbuf text = {0};
    assert_ok(model_open(path, &(model_options){.sizes_only = true}, &m, &error));
    plan_options o = plan_default_options(model_get_config(m));
    o.context = 100;
    o.kv_partitions = 2;
    o.fuse = true;
    o.sums = sums;
    assert_ok(lower_parse_rules(options, &o, &error));
    const qp_status status = lower_explain(model_get_config(m), m, &o, &text, &error);
    assert_int_equal(status, sums ? QP_UNSUPPORTED : QP_OK);
    if (!strstr(sums ? error.message : strbuf_text(&text), why))
        fail_msg("no \"%s\" in \"%s\"", why, sums ? error.message : strbuf_text(&text));
    strbuf_free(&text);
    model_close(m);
}

static void a_rule_says_why(void **state)
{
    (void)state;
    expect_why("synthetic:tiny", "", false, "norm_qkv         2 times");
    expect_why("synthetic:tiny", "-norm_up", true, "works on the residual in float32");
    expect_why("synthetic:tiny", "+output_sums", false, "the residual is not in sums");
}

static void unknown_rules_are_named(void **state)
{
    (void)state;
    plan_options o = {0};
    assert_int_equal(lower_parse_rules("+norm_up,-nrom_qkv", &o, &error), QP_INVALID);
    assert_non_null(strstr(error.message, "did you mean norm_qkv?"));
    assert_int_equal(lower_parse_rules("parts", &o, &error), QP_INVALID);
    assert_int_equal(lower_parse_rules("+", &o, &error), QP_INVALID);
    assert_int_equal(lower_parse_rules("+parts,", &o, &error), QP_OK);
    assert_int_equal(lower_parse_rules(NULL, &o, &error), QP_OK);
    assert_ok(lower_parse_rules("-all,+parts", &o, &error));
    o.fuse = true;
    assert_int_equal(lower_rules_of(&o), 1 << LOWER_RULE_parts);
}

/* The draft of a page, with a node after it that reads columns of attn. */
static void draft_with_reader(program *p, plan_builder *draft, int64_t first, int64_t count)
{
    model *m;
    assert_ok(model_open("synthetic:tiny", &(model_options){.sizes_only = true}, &m, &error));
    plan_options o = small_options(model_get_config(m));
    assert_ok(plan_draft(model_get_config(m), NULL, &o, p, draft, &error));
    builder_kernel(draft, "reader");
    plan_node *node = builder_node(draft, OP_RMS_NORM);
    node_columns(node, "x", PLAN_ATTN, first, count, "columns");
    node_tensor(node, "out", PLAN_X_NORM);
    model_close(m);
}

static void a_value_that_others_read_stays(void **state)
{
    (void)state;
    for (int reads_k = 0; reads_k < 2; reads_k++) {
        program p;
        plan_builder draft = {0};
        strbuf why = {0};
        rewrite_log log = {.out = &why};
        int count;
        draft_with_reader(&p, &draft, 0, 8);
        const int64_t q = config_q_hidden_units(&p.config);
        draft.nodes[draft.n_nodes - 1].operands[0].first_column = reads_k ? q : 0;
        assert_true(rewrite_draft(&draft, "norm_qkv", &rewrite_norm_qkv, &log, &count));
        rewrite_log_end(&log);
        assert_int_equal(count, p.config.n_layers - reads_k); /* q is there with the rule too */
        if (reads_k)
            assert_non_null(strstr(strbuf_text(&why), "reader also reads what rope writes"));
        strbuf_free(&why);
        free(draft.nodes);
        program_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rules_change_nothing),
        cmocka_unit_test(a_rule_says_why),
        cmocka_unit_test(unknown_rules_are_named),
        cmocka_unit_test(a_value_that_others_read_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
