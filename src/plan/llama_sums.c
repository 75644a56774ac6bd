/* The Llama forward pass for few tokens, fused as far as the megakernel runs it: workers add to the
 * residual in fixed point, so no worker waits between attention and its output projection, nor
 * between up and down.
 *
 *     x       [n_tokens, (2 n_layers + 1) * hidden_size]  the residual stream: each of its values
 *                                                         in a pass has a place of its own
 *     x_next  the same for the next pass, cleared by this pass's first step
 *     attn    [n_tokens, q_hidden_units]                  q
 *     part_v  [n_tokens, n_heads, kv_partitions, head_dim]  attention over parts of the positions
 *     part_s  [n_tokens, n_heads, kv_partitions]
 *
 * A sum is complete when all workers have added to it, in any order, and must be clear before the
 * first adds. x and x_next change places after each pass, so that clearing delays no worker. All
 * workers wait for all others twice a layer; from QKV to the output projection a KV head waits only
 * for itself. It is a page of its own for the reason that llama_fused.c gives.
 */
#include "plan/builder.h"

void llama_sums_view(const plan_builder *b, plan_node *node, const char *name, int64_t ahead)
{
    const int64_t hidden_size = b->program->config.hidden_size;
    node_columns(node, name, PLAN_SUMS, (b->sum + ahead) * hidden_size, hidden_size, "hidden_size");
}

void llama_sums_embedding(plan_builder *b)
{
    builder_kernel(b, "embedding");
    plan_node *embed = builder_node(b, OP_EMBEDDING_CLEAR);
    node_tensor(embed, "ids", PLAN_TOKEN_IDS);
    node_weight(embed, "table", WEIGHT_TOKEN_EMBD);
    llama_sums_view(b, embed, "x", 0);
    node_tensor(embed, "x_next", PLAN_SUMS_NEXT);
}

/* The heads of each KV head times its columns of the output projection. */
static void project_heads(plan_builder *b)
{
    const model_config *c = &b->program->config;
    builder_kernel(b, "attn_output");
    plan_node *node = builder_node(b, OP_ATTENTION_OUTPUT);
    node_heads(node, "q", PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
    llama_paging(node);
    llama_attention_params(b, node);
    node_tensor(node, "v", PLAN_PART_VALUES);
    node_tensor(node, "s", PLAN_PART_SUMS);
    node_weight(node, "weight", WEIGHT_ATTN_OUTPUT);
    node_bias(node, "bias", WEIGHT_ATTN_OUTPUT);
    llama_sums_view(b, node, "x", 0);
    llama_sums_view(b, node, "x_out", 1);
    b->sum++;
}

static void feed_forward(plan_builder *b)
{
    builder_kernel(b, "ffn");
    plan_node *node = builder_node(b, OP_NORM_MLP);
    llama_fused_norm(b, node, WEIGHT_FFN_NORM);
    node_weight(node, "gate_weight", WEIGHT_FFN_GATE);
    node_bias(node, "gate_bias", WEIGHT_FFN_GATE);
    node_weight(node, "up_weight", WEIGHT_FFN_UP);
    node_bias(node, "up_bias", WEIGHT_FFN_UP);
    node_weight(node, "down_weight", WEIGHT_FFN_DOWN);
    node_bias(node, "down_bias", WEIGHT_FFN_DOWN);
    llama_sums_view(b, node, "x_out", 1);
    b->sum++;
}

void llama_sums_layer(plan_builder *b)
{
    llama_fused_qkv(b);
    builder_kernel(b, "attention");
    plan_node *attend = llama_fused_attend(b);
    node_tensor(attend, "v", PLAN_PART_VALUES);
    node_tensor(attend, "s", PLAN_PART_SUMS);
    project_heads(b);
    feed_forward(b);
}
