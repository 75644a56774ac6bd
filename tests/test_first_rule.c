/* The search for the first rule whose result differs, with a rule that is wrong in one layer: it
 * takes the place of the library's, since both have the same name. */
#define _GNU_SOURCE
#include "test.h"

#include "inspect/diff/first_rule.h"
#include "lower/rewrite.h"

#include <dlfcn.h>
#include <string.h>

enum { SILU, UP, GATE, NORM };

static int wrong_layer; /* -1: none */

static const rewrite *right_rule(void)
{
    return dlsym(RTLD_NEXT, "rewrite_norm_up");
}

/* Gate and up change places. */
static void replace(match *m)
{
    const int64_t layer = match_node(m, UP)->layer;
    right_rule()->replace(m);
    if (layer != wrong_layer) return;
    plan_node *node = &m->draft->nodes[m->node[UP]];
    plan_operand *gate = &node->operands[op_tensor_index(op_get(node->op), "gate_weight")];
    plan_operand *up = &node->operands[op_tensor_index(op_get(node->op), "up_weight")];
    const plan_operand kept = *gate;
    *gate = *up;
    *up = kept;
}

const rewrite rewrite_norm_up = {.summary = "norm, gate and up, and the activation, wrongly",
                                 .of = {{OP_SILU_AND_MUL},
                                        {OP_LINEAR, "x", SILU},
                                        {OP_LINEAR, "x", SILU, .nth = 1},
                                        {OP_RMS_NORM, "x", UP}},
                                 .replace = replace};

static void expect(const qp_engine_options *options, bool equal, const char *verdict)
{
    qp_error error;
    strbuf text = {0};
    bool found_equal;
    assert_ok(first_rule_find(options, NULL, 6, 2, &text, &found_equal, &error));
    assert_int_equal(found_equal, equal);
    if (!strstr(strbuf_text(&text), verdict))
        fail_msg("no \"%s\" in \"%s\"", verdict, strbuf_text(&text));
    strbuf_free(&text);
}

/* The matches of a model with two layers: one of wanted_rows, two each of norm_qkv and norm_up, one
 * of norm_logits, two of parts. */
static void the_first_wrong_rule_is_found(void **state)
{
    (void)state;
    qp_engine_options options = {.size = sizeof options,
                                 .model = "synthetic:tiny:F32",
                                 .exec = "operators",
                                 .threads = 1,
                                 .fuse = true};
    wrong_layer = -1;
    expect(&options, true, "no rule's result differs: with all of 8 matches");
    wrong_layer = 1;
    expect(&options, false,
           "norm_up at 1.activation is the first rule whose result differs, match 5 of 8");
    options.rules = "-norm_qkv";
    expect(&options, false, "match 3 of 6");
    options.rules = "-norm_up";
    expect(&options, true, "no rule's result differs");
    wrong_layer = 0;
    options.rules = NULL;
    options.exec = "threads";
    expect(&options, false, "norm_up at 0.activation");
}

static void what_needs_all_rules_is_refused(void **state)
{
    (void)state;
    qp_error error;
    bool equal;
    strbuf text = {0};
    const qp_engine_options options = {
        .size = sizeof options, .model = "synthetic:tiny", .exec = "megakernel"};
    assert_int_equal(first_rule_find(&options, NULL, 6, 2, &text, &equal, &error), QP_UNSUPPORTED);
    assert_non_null(strstr(error.message, "megakernel needs all of its rules"));
    strbuf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_wrong_rule_is_found),
        cmocka_unit_test(what_needs_all_rules_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
