/* Rules for passes of few tokens: what needs no other worker's result is one operator.
 *
 *     attn    [n_tokens, q_hidden_units]     q; attention writes its output over it
 *     part_v  [n_tokens, n_heads, kv_partitions, head_dim]  attention over parts of the positions,
 *     part_s  [n_tokens, n_heads, kv_partitions]            where there are several
 *     ffn     [n_tokens, intermediate_size]  what the activation leaves
 *
 * Every worker normalises the rows itself, because that costs less than waiting for another worker.
 * All workers wait for all others four times a layer; from QKV through attention a KV head waits
 * only for itself.
 */
#include "lower/rewrite.h"

/* ---- norm_qkv ------------------------------------------------------------------------------- */

enum { QKV_ATTEND, QKV_APPEND, QKV_ROPE, QKV_HEAD_NORM, QKV_K, QKV_V, QKV_Q, QKV_NORM };

static const char *refuse_qkv(const match *m)
{
    if (m->draft->program->config.head_dim % 2 != 0) return "heads have an odd size";
    if (m->draft->program->options.act_type != DTYPE_F32) return "activations are not in F32";
    return match_feeds(m, QKV_NORM, QKV_V, "x") && match_feeds(m, QKV_NORM, QKV_Q, "x")
               ? NULL
               : "q, k and v are not products of the same rows";
}

static void take_norm(const match *m, plan_node *to, int norm)
{
    match_take(m, to, "x", norm, "x");
    match_take(m, to, "norm_weight", norm, "weight");
    match_take_params(m, to, norm);
}

static void take_weight(const match *m, plan_node *to, const char *weight, const char *bias, int k)
{
    match_take(m, to, weight, k, "weight");
    match_take(m, to, bias, k, "bias");
}

/* The norms of heads and the rotation, where the layer has them. */
static void take_heads(match *m, plan_node *node)
{
    const program *p = m->draft->program;
    const model_config *c = &p->config;
    if (match_node(m, QKV_HEAD_NORM)) {
        match_take(m, node, "q_norm", QKV_HEAD_NORM, "q_weight");
        match_take(m, node, "k_norm", QKV_HEAD_NORM, "k_weight");
    }
    node_tensor(node, "rope_rows", PLAN_ROPE_ROWS);
    node_tensor(node, "cos_sin", program_rope_table(p, node->layer));
    node_param(node, "interleaved", c->rope.interleaved);
    node_param(node, "turns", match_node(m, QKV_ROPE) != NULL);
    match_take(m, node, "q", QKV_ATTEND, "q");
}

static void replace_qkv(match *m)
{
    plan_node node = match_begin(m, QKV_Q, OP_NORM_QKV_ROPE);
    take_norm(m, &node, QKV_NORM);
    take_weight(m, &node, "q_weight", "q_bias", QKV_Q);
    take_weight(m, &node, "k_weight", "k_bias", QKV_K);
    take_weight(m, &node, "v_weight", "v_bias", QKV_V);
    take_heads(m, &node);
    match_take(m, &node, "positions", QKV_APPEND, "positions");
    match_take_paging(m, &node, QKV_APPEND);
    match_put(m, QKV_Q, &node);
}

const rewrite rewrite_norm_qkv = {
    .summary = "norm, q, k and v, rope and the append to the cache are one operator",
    .of = {{OP_PAGED_PREFILL, .stays = true},
           {OP_KV_APPEND, "k_cache", QKV_ATTEND},
           {OP_ROPE, "k", QKV_APPEND, .optional = true},
           {OP_HEAD_NORM, "k", QKV_ROPE, .optional = true},
           {OP_LINEAR, "k", QKV_HEAD_NORM},
           {OP_LINEAR, "v", QKV_APPEND},
           {OP_LINEAR, "q", QKV_HEAD_NORM},
           {OP_RMS_NORM, "x", QKV_K}},
    .refuses = refuse_qkv,
    .replace = replace_qkv};

/* ---- norm_up -------------------------------------------------------------------------------- */

enum { UP_SILU, UP_UP, UP_GATE, UP_NORM };

static const char *refuse_up(const match *m)
{
    if (m->draft->program->options.act_type != DTYPE_F32) return "activations are not in F32";
    return match_feeds(m, UP_NORM, UP_GATE, "x") ? NULL
                                                 : "gate and up are not products of the same rows";
}

static void replace_up(match *m)
{
    plan_node node = match_begin(m, UP_UP, OP_NORM_GATE_UP_SILU);
    take_norm(m, &node, UP_NORM);
    take_weight(m, &node, "gate_weight", "gate_bias", UP_GATE);
    take_weight(m, &node, "up_weight", "up_bias", UP_UP);
    match_take(m, &node, "out", UP_SILU, "out");
    match_join_steps(m, UP_SILU, UP_UP); /* with ranks: they gather what it makes */
    match_put(m, UP_UP, &node);
}

const rewrite rewrite_norm_up = {.summary =
                                     "norm, gate and up, and the activation are one operator",
                                 .of = {{OP_SILU_AND_MUL},
                                        {OP_LINEAR, "x", UP_SILU},
                                        {OP_LINEAR, "x", UP_SILU, .nth = 1},
                                        {OP_RMS_NORM, "x", UP_UP}},
                                 .refuses = refuse_up,
                                 .replace = replace_up};

/* ---- norm_logits ---------------------------------------------------------------------------- */

enum { LOGITS_HEAD, LOGITS_NORM, LOGITS_GATHER };

static const char *refuse_logits(const match *m)
{
    const bool is_head = match_operand(m, LOGITS_HEAD, "weight")->id == WEIGHT_OUTPUT;
    if (!is_head) return "";
    return m->draft->program->options.act_type != DTYPE_F32 ? "activations are not in F32" : NULL;
}

static void replace_logits(match *m)
{
    plan_node node = match_begin(m, LOGITS_HEAD, OP_NORM_LINEAR);
    take_norm(m, &node, LOGITS_NORM);
    if (match_node(m, LOGITS_GATHER)) {
        match_take(m, &node, "x", LOGITS_GATHER, "table");
        match_take(m, &node, "rows", LOGITS_GATHER, "ids");
    }
    node_rows(&node, match_node(m, LOGITS_GATHER) ? "rows" : "x", AXIS_OUTPUTS, "n_outputs");
    take_weight(m, &node, "weight", "bias", LOGITS_HEAD);
    match_take(m, &node, "out", LOGITS_HEAD, "out");
    match_put(m, LOGITS_HEAD, &node);
}

const rewrite rewrite_norm_logits = {
    .summary = "the gather of the rows whose logits are wanted, their norm and the output "
               "projection are one operator",
    .of = {{OP_LINEAR},
           {OP_RMS_NORM, "x", LOGITS_HEAD},
           {OP_EMBEDDING, "x", LOGITS_NORM, .optional = true}},
    .refuses = refuse_logits,
    .replace = replace_logits};

/* ---- parts ---------------------------------------------------------------------------------- */

static void declare_parts(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim n = {"n_tokens", "n", -AXIS_TOKENS}, heads = {"n_heads", "nh", c->n_heads},
                   parts = {"n_states", "ns", b->program->options.kv_partitions};
    builder_tensor(b, PLAN_PART_VALUES, "part_v", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(n, heads, parts, {"head_dim", "dh", c->head_dim}));
    builder_tensor(b, PLAN_PART_SUMS, "part_s", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(n, heads, parts));
}

static void replace_parts(match *m)
{
    const plan_options *o = &m->draft->program->options;
    plan_node attend = match_begin(m, 0, OP_ATTENTION_PARTIAL);
    match_take(m, &attend, "q", 0, "q");
    match_take_paging(m, &attend, 0);
    match_take_params(m, &attend, 0);
    if (o->kv_partitions == 1 && !o->sums) {
        match_take(m, &attend, "v", 0, "out");
        attend.operands[op_tensor_index(op_get(attend.op), "v")].one_part = true;
    } else {
        plan_node merge = match_begin(m, 0, OP_MERGE_STATES);
        declare_parts(m->draft);
        node_tensor(&attend, "v", PLAN_PART_VALUES);
        node_tensor(&attend, "s", PLAN_PART_SUMS);
        node_tensor(&merge, "v", PLAN_PART_VALUES);
        node_tensor(&merge, "s", PLAN_PART_SUMS);
        match_take(m, &merge, "out", 0, "out");
        match_add_after(m, 0, &merge);
    }
    match_put(m, 0, &attend);
}

static const char *refuse_parts(const match *m)
{
    const bool sums = match_operand(m, 0, "lse")->kind != OPERAND_NONE;
    return sums ? "sinks need the sums of attention" : NULL;
}

const rewrite rewrite_parts = {
    .summary = "attention in parts of the positions, which are merged where there are several",
    .of = {{OP_PAGED_PREFILL}},
    .refuses = refuse_parts,
    .replace = replace_parts};
