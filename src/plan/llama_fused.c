/* The Llama forward pass for few tokens: what needs no other worker's result is one operator.
 *
 *     x       [n_tokens, hidden_size]        the residual stream, alive throughout
 *     attn    [n_tokens, q_hidden_units]     q; attention writes its output over it
 *     part_v  [n_tokens, n_heads, kv_partitions, head_dim]  attention over parts of the positions,
 *     part_s  [n_tokens, n_heads, kv_partitions]            where there are several
 *     ffn     [n_tokens, intermediate_size]  what the activation leaves
 *
 * Every worker normalises the rows itself, because that costs less than waiting for another worker.
 * All workers wait for all others four times a layer; from QKV through attention a KV head waits
 * only for itself.
 *
 * This is a page of its own and not a rewrite of llama.c's program: a rewrite would have to find
 * each chain of nodes, connect its operands again and declare other tensors, in as many lines as
 * the four operators take here, and the fused layer could not be read from top to bottom.
 */
#include "plan/builder.h"

#include "model/family/family.h"

void llama_fused_norm(const plan_builder *b, plan_node *node, weight_slot weight)
{
    if (b->program->options.sums)
        llama_sums_view(b, node, "x", 0);
    else
        node_tensor(node, "x", PLAN_X);
    node_weight(node, "norm_weight", weight);
    node_param(node, "eps", b->program->config.rms_norm_eps);
}

static void project(plan_node *node, const char *weight, const char *bias, weight_slot slot)
{
    node_weight(node, weight, slot);
    node_bias(node, bias, slot);
}

/* q into attn, keys and values into the cache. */
void llama_fused_qkv(plan_builder *b)
{
    const model_config *c = &b->program->config;
    builder_kernel(b, "attn_qkv");
    plan_node *node = builder_node(b, OP_NORM_QKV_ROPE);
    llama_fused_norm(b, node, WEIGHT_ATTN_NORM);
    project(node, "q_weight", "q_bias", WEIGHT_ATTN_Q);
    project(node, "k_weight", "k_bias", WEIGHT_ATTN_K);
    project(node, "v_weight", "v_bias", WEIGHT_ATTN_V);
    if (family_has(c->family, WEIGHT_ATTN_Q_NORM)) {
        node_weight(node, "q_norm", WEIGHT_ATTN_Q_NORM);
        node_weight(node, "k_norm", WEIGHT_ATTN_K_NORM);
    }
    node_tensor(node, "rope_rows", PLAN_ROPE_ROWS);
    node_tensor(node, "cos_sin", PLAN_ROPE_TABLE);
    node_param(node, "interleaved", c->rope.interleaved);
    node_param(node, "turns", !layer_set_has(&c->no_rope, b->layer));
    node_tensor(node, "positions", PLAN_POSITION_IDS);
    llama_paging(node);
    node_heads(node, "q", PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
}

plan_node *llama_fused_attend(plan_builder *b)
{
    const model_config *c = &b->program->config;
    plan_node *attend = builder_node(b, OP_ATTENTION_PARTIAL);
    node_heads(attend, "q", PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
    llama_paging(attend);
    llama_attention_params(b, attend);
    return attend;
}

static void attend_in_parts(plan_builder *b, plan_node *attend)
{
    const model_config *c = &b->program->config;
    node_tensor(attend, "v", PLAN_PART_VALUES);
    node_tensor(attend, "s", PLAN_PART_SUMS);
    plan_node *merge = builder_node(b, OP_MERGE_STATES);
    node_tensor(merge, "v", PLAN_PART_VALUES);
    node_tensor(merge, "s", PLAN_PART_SUMS);
    node_heads(merge, "out", PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
}

static void attention(plan_builder *b)
{
    const model_config *c = &b->program->config;
    builder_graph(b, "attention");
    plan_node *attend = llama_fused_attend(b);
    if (b->program->options.kv_partitions > 1)
        attend_in_parts(b, attend);
    else
        node_one_part(attend, "v", PLAN_ATTN, config_q_hidden_units(c), c->n_heads, "n_heads");
    llama_gather_attention(b);
}

void llama_fused_layer(plan_builder *b)
{
    const model_config *c = &b->program->config;
    llama_fused_qkv(b);
    attention(b);
    builder_kernel(b, "attn_output");
    llama_project_back(b, WEIGHT_ATTN_OUTPUT, PLAN_ATTN, config_q_hidden_units(c),
                       "q_hidden_units");
    llama_exchange(b, "attn_allreduce");

    builder_graph_if(b, llama_gathers(b), "ffn_up");
    plan_node *up = builder_node(b, OP_NORM_GATE_UP_SILU);
    llama_fused_norm(b, up, WEIGHT_FFN_NORM);
    project(up, "gate_weight", "gate_bias", WEIGHT_FFN_GATE);
    project(up, "up_weight", "up_bias", WEIGHT_FFN_UP);
    node_tensor(up, "out", PLAN_FFN);
    llama_gather_ffn(b);

    builder_kernel(b, "ffn_down");
    llama_project_back(b, WEIGHT_FFN_DOWN, PLAN_FFN, c->intermediate_size, "intermediate_size");
    llama_exchange(b, "ffn_allreduce");
}

void llama_fused_logits(plan_builder *b)
{
    builder_graph_if(b, b->program->options.ranks > 1, "lm_head");
    plan_node *head = builder_node(b, OP_NORM_LINEAR);
    llama_fused_norm(b, head, WEIGHT_OUTPUT_NORM);
    node_tensor(head, "rows", PLAN_OUTPUT_ROWS);
    project(head, "weight", "bias", WEIGHT_OUTPUT);
    llama_logits_columns(b, head);
}
