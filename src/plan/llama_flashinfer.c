/* The Llama forward pass with FlashInfer's operators, as engines that are made of them run it.
 *
 *     x     [n_tokens, hidden_size]       the residual: fused_add_rmsnorm adds x_ to it
 *     x_    [n_tokens, hidden_size]       a norm, or the projection that the next norm adds
 *     attn  [n_tokens, qkv_hidden_units]  q, k and v; attention's output over q
 *
 * A batch in which any sequence has several tokens reads prompts: ragged prefill attends to the
 * batch's own keys, before they are rounded to the cache's type; paged prefill attends to the pages
 * of earlier positions; merge_state joins both. Other batches decode, with only paged decode. The
 * program has the nodes of both phases, and the rows of one of them are none.
 *
 * The bits of a prompt therefore depend on how it is cut into chunks, which those of llama.c do
 * not.
 */
#include "plan/builder.h"

static const char prefill_tokens[] = "n_prefill_tokens", prefill_ends[] = "n_prefills + 1";
static const char decode_tokens[] = "n_decode_tokens", decode_ends[] = "n_decode_tokens + 1";

void llama_flashinfer_tensors(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim tokens = {prefill_tokens, "npt", -AXIS_PREFILL_TOKENS};
    const plan_dim heads = {"n_heads", "nh", c->n_heads}, size = {"head_dim", "dh", c->head_dim};
    const plan_dim ends = {"n_sequences + 1", "s + 1", -AXIS_SEQUENCE_ENDS};
    builder_tensor(b, PLAN_PAST_INDPTR, "past_indptr", PLAN_INPUT, DTYPE_I32, PLAN_DIMS(ends));
    builder_tensor(b, PLAN_PAST_INDICES, "past_indices", PLAN_INPUT, DTYPE_I32,
                   PLAN_DIMS({"n_past_refs", "npa", -AXIS_PAST_REFS}));
    builder_tensor(b, PLAN_PAST_LAST_PAGE_LEN, "past_last_page_len", PLAN_INPUT, DTYPE_I32,
                   PLAN_DIMS({"n_sequences", "s", -AXIS_SEQUENCES}));
    builder_tensor(b, PLAN_NEW_VALUES, "new_v", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(tokens, heads, size));
    builder_tensor(b, PLAN_NEW_SUMS, "new_s", PLAN_ACTIVATION, DTYPE_F32, PLAN_DIMS(tokens, heads));
    builder_tensor(b, PLAN_PAST_VALUES, "past_v", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(tokens, heads, size));
    builder_tensor(b, PLAN_PAST_SUMS, "past_s", PLAN_ACTIVATION, DTYPE_F32,
                   PLAN_DIMS(tokens, heads));
}

/* x += x_; x_ = its norm. */
static void add_norm(plan_builder *b, const char *step, weight_slot weight)
{
    builder_kernel(b, step);
    plan_node *node = builder_node(b, OP_ADD_RMS_NORM);
    node_tensor(node, "x", PLAN_X_NORM);
    node_tensor(node, "residual", PLAN_X);
    node_weight(node, "weight", weight);
    node_param(node, "eps", b->program->config.rms_norm_eps);
}

static void node_q(const plan_builder *b, plan_node *node, const char *name, program_axis axis,
                   const char *symbol)
{
    const model_config *c = &b->program->config;
    node_heads(node, name, PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
    node_rows(node, name, axis, symbol);
}

/* new_v, new_s: attention over the keys of the batch. */
static void attend_new(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c), kv = config_kv_hidden_units(c);
    plan_node *node = builder_node(b, OP_RAGGED_PREFILL);
    node_q(b, node, "q", AXIS_PREFILL_TOKENS, prefill_tokens);
    node_heads(node, "k", PLAN_ATTN, q, kv, c->n_kv_heads, "n_kv_heads");
    node_heads(node, "v", PLAN_ATTN, q + kv, kv, c->n_kv_heads, "n_kv_heads");
    node_rows(node, "k", AXIS_PREFILL_TOKENS, prefill_tokens);
    node_rows(node, "v", AXIS_PREFILL_TOKENS, prefill_tokens);
    node_tensor(node, "qo_indptr", PLAN_QO_INDPTR);
    node_tensor(node, "kv_indptr", PLAN_QO_INDPTR);
    node_rows(node, "qo_indptr", AXIS_PREFILL_ENDS, prefill_ends);
    node_rows(node, "kv_indptr", AXIS_PREFILL_ENDS, prefill_ends);
    node_tensor(node, "out", PLAN_NEW_VALUES);
    node_tensor(node, "lse", PLAN_NEW_SUMS);
    llama_attention_params(b, node);
}

/* past_v, past_s: attention over the pages of earlier positions, all of which a token sees. */
static void attend_past(plan_builder *b)
{
    plan_node *node = builder_node(b, OP_PAGED_PREFILL);
    node_q(b, node, "q", AXIS_PREFILL_TOKENS, prefill_tokens);
    node_tensor(node, "k_cache", PLAN_K_CACHE);
    node_tensor(node, "v_cache", PLAN_V_CACHE);
    node_tensor(node, "qo_indptr", PLAN_QO_INDPTR);
    node_tensor(node, "kv_indptr", PLAN_PAST_INDPTR);
    node_tensor(node, "kv_indices", PLAN_PAST_INDICES);
    node_tensor(node, "kv_last_page_len", PLAN_PAST_LAST_PAGE_LEN);
    node_tensor(node, "out", PLAN_PAST_VALUES);
    node_tensor(node, "lse", PLAN_PAST_SUMS);
    llama_attention_params(b, node);
    node_param(node, "causal", 0);
}

static void merge(plan_builder *b)
{
    plan_node *node = builder_node(b, OP_MERGE_STATE);
    node_tensor(node, "v_a", PLAN_NEW_VALUES);
    node_tensor(node, "s_a", PLAN_NEW_SUMS);
    node_tensor(node, "v_b", PLAN_PAST_VALUES);
    node_tensor(node, "s_b", PLAN_PAST_SUMS);
    node_q(b, node, "v", AXIS_PREFILL_TOKENS, prefill_tokens);
    node_tensor(node, "s", PLAN_NEW_SUMS);
}

static void decode(plan_builder *b)
{
    plan_node *node = builder_node(b, OP_PAGED_DECODE);
    node_q(b, node, "q", AXIS_DECODE_TOKENS, decode_tokens);
    node_tensor(node, "k_cache", PLAN_K_CACHE);
    node_tensor(node, "v_cache", PLAN_V_CACHE);
    node_tensor(node, "kv_indptr", PLAN_KV_INDPTR);
    node_rows(node, "kv_indptr", AXIS_DECODE_ENDS, decode_ends);
    node_tensor(node, "kv_indices", PLAN_KV_INDICES);
    node_tensor(node, "kv_last_page_len", PLAN_KV_LAST_PAGE_LEN);
    node_rows(node, "kv_last_page_len", AXIS_DECODE_TOKENS, decode_tokens);
    node_q(b, node, "out", AXIS_DECODE_TOKENS, decode_tokens);
    node_param(node, "sm_scale", llama_attention_scale(b));
}

void llama_flashinfer_layer(plan_builder *b)
{
    const model_config *c = &b->program->config;
    if (b->layer == 0)
        llama_norm(b, "attn_norm", WEIGHT_ATTN_NORM);
    else
        add_norm(b, "attn_norm", WEIGHT_ATTN_NORM);
    llama_qkv(b);
    llama_qk_norm(b);
    llama_rope(b);

    builder_graph(b, "attention");
    llama_append(b);
    attend_new(b);
    attend_past(b);
    merge(b);
    decode(b);

    builder_kernel(b, "attn_output");
    llama_project_to(b, WEIGHT_ATTN_OUTPUT, PLAN_ATTN, config_q_hidden_units(c), "q_hidden_units",
                     true);
    add_norm(b, "ffn_norm", WEIGHT_FFN_NORM);
    llama_up(b);
    builder_kernel(b, "ffn_down");
    llama_project_to(b, WEIGHT_FFN_DOWN, PLAN_FFN, c->intermediate_size, "intermediate_size", true);
}

/* The norm of all rows, of which those are gathered whose logits are wanted. */
void llama_flashinfer_logits(plan_builder *b)
{
    add_norm(b, "final_norm", WEIGHT_OUTPUT_NORM);
    builder_kernel(b, "output_rows");
    llama_gather_rows(b, PLAN_X_NORM);
    llama_head(b);
}
