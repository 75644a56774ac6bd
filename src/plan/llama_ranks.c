/* What several ranks exchange in llama.c's pass. */
#include "plan/builder.h"

bool llama_has_ranks(const plan_builder *b)
{
    return b->program->options.ranks > 1;
}

bool llama_gathers(const plan_builder *b)
{
    return llama_has_ranks(b) && b->program->options.cut == PLAN_GATHER;
}

void llama_gather(plan_builder *b, plan_tensor_id part, int64_t first_column, plan_tensor_id out,
                  program_span columns)
{
    plan_node *node = builder_node(b, OP_ALL_GATHER);
    node_columns(node, "part", part, first_column, columns.count, "own_columns");
    node_tensor(node, "out", out);
    node_param(node, "first", (double)columns.first);
}

void llama_exchange(plan_builder *b, plan_tensor_id x)
{
    if (llama_gathers(b)) {
        llama_gather(b, x, b->program->shard.hidden.first, x, b->program->shard.hidden);
        return;
    }
    plan_node *node = builder_node(b, OP_ALL_REDUCE);
    node_parts(node, "parts", x, b->program->options.ranks);
    node_tensor(node, "out", x);
}

void llama_gather_choices(plan_builder *b)
{
    for (int64_t i = 0; i < b->program->config.n_experts_used; i++) {
        plan_node *node = builder_node(b, OP_ALL_GATHER);
        node_choice(node, "part", PLAN_EXPERTS, i, "own_columns");
        node_choice(node, "out", PLAN_FFN_ALL, i, "all_columns");
        node_param(node, "first", (double)b->program->shard.intermediate.first);
    }
}

void llama_gather_heads(plan_builder *b, int64_t first, program_span heads, int64_t all_first,
                        int64_t all_heads)
{
    const int64_t dh = b->program->config.head_dim;
    plan_node *node = builder_node(b, OP_ALL_GATHER);
    node_columns(node, "part", PLAN_ATTN, first, heads.count * dh, "own_columns");
    node_columns(node, "out", PLAN_QK_ALL, all_first, all_heads * dh, "all_columns");
    node_param(node, "first", (double)(heads.first * dh));
}

void llama_take_heads(plan_builder *b, int64_t first, program_span heads, int64_t all_first)
{
    const int64_t dh = b->program->config.head_dim;
    plan_node *copy = builder_node(b, OP_SCALE);
    node_columns(copy, "x", PLAN_QK_ALL, all_first + heads.first * dh, heads.count * dh,
                 "own_columns");
    node_columns(copy, "out", PLAN_ATTN, first, heads.count * dh, "own_columns");
    node_param(copy, "factor", 1);
}
