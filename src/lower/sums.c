/* Rules for the megakernel: workers add to the residual in fixed point, so no worker waits between
 * attention and its output projection, nor between up and down.
 *
 *     x       [n_tokens, (2 n_layers + 1) * hidden_size]  the residual stream: each of its values
 *                                                         in a pass has a place of its own
 *     x_next  the same for the next pass, cleared by this pass's first step
 *     attn    [n_tokens, q_hidden_units]                  q
 *
 * A sum is complete when all workers have added to it, in any order, and must be clear before the
 * first adds. x and x_next change places after each pass, so that clearing delays no worker. All
 * workers wait for all others twice a layer; from QKV to the output projection a KV head waits only
 * for itself.
 */
#include "lower/rewrite.h"

/* ---- output_sums ---------------------------------------------------------------------------- */

enum { OUTPUT_REDUCE, OUTPUT_LINEAR, OUTPUT_MERGE, OUTPUT_ATTEND };

static const char *refuse_without_sums(const match *m)
{
    return m->draft->program->options.sums ? NULL : "the residual is not in sums";
}

/* Every rank adds to its own sums, whatever its projection had: bias and residual. */
static void add_to_x(plan_node *node)
{
    node_tensor(node, "x", PLAN_X);
    node_tensor(node, "x_out", PLAN_X);
}

static void replace_output(match *m)
{
    plan_node node = match_begin(m, OUTPUT_LINEAR, OP_ATTENTION_OUTPUT);
    match_take(m, &node, "q", OUTPUT_ATTEND, "q");
    match_take_paging(m, &node, OUTPUT_ATTEND);
    match_take_params(m, &node, OUTPUT_ATTEND);
    match_take(m, &node, "v", OUTPUT_MERGE, "v");
    match_take(m, &node, "s", OUTPUT_MERGE, "s");
    match_take(m, &node, "weight", OUTPUT_LINEAR, "weight");
    node_bias(&node, "bias", WEIGHT_ATTN_OUTPUT);
    add_to_x(&node);
    match_put(m, OUTPUT_LINEAR, &node);
}

const rewrite rewrite_output_sums = {
    .summary = "the output projection of each KV head is added to the sums, without a merge of its "
               "parts before it",
    .of = {{OP_ALL_REDUCE},
           {OP_LINEAR, "parts", OUTPUT_REDUCE},
           {OP_MERGE_STATES, "x", OUTPUT_LINEAR},
           {OP_ATTENTION_PARTIAL, "v", OUTPUT_MERGE, .stays = true}},
    .refuses = refuse_without_sums,
    .replace = replace_output};

/* ---- mlp_sums ------------------------------------------------------------------------------- */

enum { MLP_REDUCE, MLP_DOWN, MLP_UP };

static void replace_mlp(match *m)
{
    static const char *const same[] = {"x",         "norm_weight", "gate_weight",
                                       "gate_bias", "up_weight",   "up_bias"};
    plan_node node = match_begin(m, MLP_UP, OP_NORM_MLP);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        match_take(m, &node, same[i], MLP_UP, same[i]);
    match_take_params(m, &node, MLP_UP);
    match_take(m, &node, "down_weight", MLP_DOWN, "weight");
    node_bias(&node, "down_bias", WEIGHT_FFN_DOWN);
    node_tensor(&node, "x_out", PLAN_X);
    m->draft->program->steps[node.step].name = "ffn";
    match_put(m, MLP_UP, &node);
}

const rewrite rewrite_mlp_sums = {
    .summary = "norm, gate and up, activation and down are one operator, which adds to the sums",
    .of = {{OP_ALL_REDUCE},
           {OP_LINEAR, "parts", MLP_REDUCE},
           {OP_NORM_GATE_UP_SILU, "x", MLP_DOWN}},
    .refuses = refuse_without_sums,
    .replace = replace_mlp};

/* ---- sums ----------------------------------------------------------------------------------- */

/* Operators that read sums, and those that also add to them. */
static bool reads_sums(op_code op)
{
    return op == OP_NORM_QKV_ROPE || op == OP_NORM_LINEAR;
}

static bool adds_sums(op_code op)
{
    return op == OP_ATTENTION_OUTPUT || op == OP_NORM_MLP;
}

/* The number of the residual's value that the next node reads, and whether a node needs it in F32.
 */
typedef struct numbering {
    int64_t hidden_size, value;
    bool in_f32;
} numbering;

static void look(void *context, plan_node *node)
{
    numbering *n = context;
    for (int t = 0; t < op_n_tensors(op_get(node->op)); t++)
        if (node->operands[t].kind == OPERAND_TENSOR && node->operands[t].id == PLAN_X)
            n->in_f32 |= !reads_sums(node->op) && !adds_sums(node->op);
}

static const char *refuse_sums(const match *m)
{
    numbering n = {0};
    match_visit(m, 0, -1, look, &n);
    if (match_operand(m, 0, "out")->id != PLAN_X) return "";
    return n.in_f32 ? "a step works on the residual in float32" : NULL;
}

static void see_value(plan_node *node, const char *name, const numbering *n, int64_t value)
{
    node_columns(node, name, PLAN_SUMS, value * n->hidden_size, n->hidden_size, "hidden_size");
}

static void renumber(void *context, plan_node *node)
{
    numbering *n = context;
    if (reads_sums(node->op) || adds_sums(node->op)) see_value(node, "x", n, n->value);
    if (adds_sums(node->op)) see_value(node, "x_out", n, ++n->value);
}

static void declare_sums(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim sums = {"(2 * n_layers + 1) * hidden_size", "(2 nl + 1) d",
                           (2 * c->n_layers + 1) * c->hidden_size};
    builder_tensor(b, PLAN_SUMS, "x", PLAN_CARRIED, DTYPE_I64,
                   PLAN_DIMS({"n_tokens", "n", -AXIS_TOKENS}, sums));
    builder_tensor(b, PLAN_SUMS_NEXT, "x_next", PLAN_CARRIED, DTYPE_I64,
                   PLAN_DIMS({"most_tokens", "mn", b->program->options.max_tokens}, sums));
}

static void replace_sums(match *m)
{
    numbering n = {.hidden_size = m->draft->program->config.hidden_size};
    plan_node node = match_begin(m, 0, OP_EMBEDDING_CLEAR);
    declare_sums(m->draft);
    match_take(m, &node, "ids", 0, "ids");
    match_take(m, &node, "table", 0, "table");
    see_value(&node, "x", &n, 0);
    node_tensor(&node, "x_next", PLAN_SUMS_NEXT);
    match_visit(m, 0, -1, renumber, &n);
    match_put(m, 0, &node);
}

const rewrite rewrite_sums = {
    .summary = "each value of the residual is a sum in fixed point, in a place of its own",
    .of = {{OP_EMBEDDING}},
    .refuses = refuse_sums,
    .replace = replace_sums};
