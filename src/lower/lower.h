/* Programs from a page of the plan and rules.
 *
 * A page (plan/llama.c) writes the forward pass as a paper does. Rules rewrite it for the machine
 * that runs it: rules.def lists them, in the order in which they are taken. A rule that does not
 * apply to a layer says why in a sentence, and leaves the layer as it is.
 */
#pragma once

#include "base/strbuf.h"
#include "plan/plan.h"

/* When a rule is taken. */
typedef enum lower_when {
    LOWER_CPU,  /* for a CPU */
    LOWER_FUSE, /* with the options fuse and sums */
    LOWER_SUMS, /* with the option sums */
    LOWER_GPU,  /* for launches on a GPU */
} lower_when;

enum {
#define RULE(name, when)           LOWER_RULE_##name,
#define LAUNCH_RULE(name, summary) LOWER_RULE_##name,
#include "lower/rules.def"
#undef RULE
#undef LAUNCH_RULE
    LOWER_RULES
};

/* The rules that these options take on the plan, a bit each. */
uint32_t lower_rules_of(const plan_options *options);

/* The launch rules (launches.h) that a program's options take, a bit each. */
uint32_t lower_launch_rules(const program *program);

const char *lower_rule_name(int rule);

/* Whether an operator works on each row by itself: one of those between attention and the end. */
bool lower_goes_by_rows(op_code op);

/* And whether a node of the program does, with only its rows: not with adapters of tokens. */
bool lower_node_goes_by_rows(const program *program, int node);

/* Appends a line: how often a rule was taken, and what it does. */
void lower_tell_rule(int rule, int count, strbuf *out);

/* Whether any rule of the plan fuses operators. */
bool lower_fuses(const plan_options *options);

/* Reads "+a,-b": rules to take and to leave out besides those of the other options; "-all" leaves
 * out every rule. A number takes so many matches of the rules, the first ones. NULL or "" changes
 * nothing. QP_INVALID names an unknown rule. */
qp_status lower_parse_rules(const char *text, plan_options *options, qp_error *error);

/* Builds the program: writes the page, takes the rules, places tensors in the arena, and verifies.
 * Reads types and shapes of the weights from `model`; NULL, for questions about sizes: weights are
 * F32, with the shapes of the config and without biases. program_free() the result, also after a
 * failure. */
qp_status lower_build(const model_config *config, const model *model, const plan_options *options,
                      program *out, qp_error *error);

/* The pass of the same model with other options, for another rank too. */
qp_status lower_rebuild(const program *of, const plan_options *options, program *out,
                        qp_error *error);

/* lower_build(), which also tells which rules were taken how often, and why they do not apply where
 * they nearly do: lines of text. */
qp_status lower_explain(const model_config *config, const model *model, const plan_options *options,
                        strbuf *out, qp_error *error);

/* The largest context (a multiple of the page size, at most the model's) that fits `available`
 * bytes with everything else as in `options`; 0: none does. */
int64_t lower_largest_context(const model_config *config, const plan_options *options,
                              uint64_t weight_bytes, uint64_t available);
