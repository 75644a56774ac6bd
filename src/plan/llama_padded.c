/* The Llama forward pass of a padded-batch engine: attention over a rectangle of sequences.
 *
 *     x         [n_tokens, hidden_size]       the residual: add_residual_rms_norm adds x_ to it
 *     x_        [n_tokens, hidden_size]       a norm, or the projection that the next norm adds
 *     attn      [n_tokens, qkv_hidden_units]  q, k and v; later attention's output, without padding
 *     padded_q  [n_sequences, n_heads, max_q_len, head_dim]    rotated; later attention's output
 *     padded_k  [n_sequences, n_kv_heads, max_q_len, head_dim], padded_v
 *     all_k     [n_sequences, n_heads, max_kv_len, head_dim]   the cache, repeated; all_v
 *     scores    [n_sequences, n_heads, max_q_len, max_kv_len]  later the probabilities
 *     top_v     [n_outputs, 8 * 64]   the 64 largest logits of each eighth of the vocabulary
 *     top_ids   [n_outputs, 8 * 64]   their ids
 *     best_v    [n_outputs, 64]       the 64 largest of those, best_ids
 *
 * The cache has one page for each sequence, so that it is contiguous, as this engine's is. Biases
 * of q, k and v are added by their projections, because models store three of them.
 */
#include "plan/builder.h"

enum { TOP_BLOCKS = 8, TOP_K = 64 };

void llama_padded_tensors(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim sequences = {"n_sequences", "s", -AXIS_SEQUENCES};
    const plan_dim tokens = {"n_tokens", "n", -AXIS_TOKENS};
    const plan_dim outputs = {"n_outputs", "no", -AXIS_OUTPUTS};
    const plan_dim q = {"max_q_len", "mq", -AXIS_LONGEST_Q};
    const plan_dim kv = {"max_kv_len", "mkv", -AXIS_LONGEST_KV};
    const plan_dim heads = {"n_heads", "nh", c->n_heads}, size = {"head_dim", "dh", c->head_dim};
    const plan_dim kv_heads = {"n_kv_heads", "nkvh", c->n_kv_heads};
    const plan_dim top = {"8 * k", "8 k", TOP_BLOCKS * TOP_K}, best = {"k", "k", TOP_K};
    const struct {
        plan_tensor_id id;
        const char *name;
        dtype type;
        int rank;
        plan_dim dims[4];
    } activations[] = {
        {PLAN_MASK, "mask", DTYPE_F32, 3, {sequences, q, kv}},
        {PLAN_PADDED_Q, "padded_q", DTYPE_F32, 4, {sequences, heads, q, size}},
        {PLAN_PADDED_K, "padded_k", DTYPE_F32, 4, {sequences, kv_heads, q, size}},
        {PLAN_PADDED_V, "padded_v", DTYPE_F32, 4, {sequences, kv_heads, q, size}},
        {PLAN_REPEATED_K, "all_k", DTYPE_F32, 4, {sequences, heads, kv, size}},
        {PLAN_REPEATED_V, "all_v", DTYPE_F32, 4, {sequences, heads, kv, size}},
        {PLAN_SCORES, "scores", DTYPE_F32, 4, {sequences, heads, q, kv}},
        {PLAN_TOP_VALUES, "top_v", DTYPE_F32, 2, {outputs, top}},
        {PLAN_TOP_IDS, "top_ids", DTYPE_I32, 2, {outputs, top}},
        {PLAN_BEST_VALUES, "best_v", DTYPE_F32, 2, {outputs, best}},
        {PLAN_BEST_IDS, "best_ids", DTYPE_I32, 2, {outputs, best}},
    };
    builder_tensor(b, PLAN_Q_LENS, "q_lens", PLAN_INPUT, DTYPE_I32, PLAN_DIMS(sequences));
    builder_tensor(b, PLAN_PAST_LENS, "past_lens", PLAN_INPUT, DTYPE_I32, PLAN_DIMS(sequences));
    builder_tensor(b, PLAN_PADDING_OFFSETS, "padding_offsets", PLAN_INPUT, DTYPE_I32,
                   PLAN_DIMS(tokens));
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        builder_tensor(b, activations[i].id, activations[i].name, PLAN_ACTIVATION,
                       activations[i].type, activations[i].rank, activations[i].dims);
}

/* One mask for all layers. */
void llama_padded_setup(plan_builder *b)
{
    builder_kernel(b, "mask");
    plan_node *node = builder_node(b, OP_CAUSAL_MASK);
    node_tensor(node, "q_lens", PLAN_Q_LENS);
    node_tensor(node, "history", PLAN_PAST_LENS);
    node_tensor(node, "mask", PLAN_MASK);
}

/* x += x_ + bias; x_ = its norm. */
static void add_norm(plan_builder *b, const char *step, weight_slot weight)
{
    builder_kernel(b, step);
    plan_node *node = builder_node(b, OP_ADD_RESIDUAL_RMS_NORM);
    node_tensor(node, "x", PLAN_X_NORM);
    if (weight == WEIGHT_FFN_NORM) node_bias(node, "bias", WEIGHT_ATTN_OUTPUT);
    node_tensor(node, "residual", PLAN_X);
    node_weight(node, "weight", weight);
    node_tensor(node, "out", PLAN_X_NORM);
    node_param(node, "eps", b->program->config.rms_norm_eps);
}

/* From packed rows to the rectangle. */
static void pad(plan_builder *b)
{
    builder_kernel(b, "pad_rope");
    plan_node *node = builder_node(b, OP_BIAS_PAD_ROPE);
    node_tensor(node, "qkv", PLAN_ATTN);
    node_tensor(node, "padding_offsets", PLAN_PADDING_OFFSETS);
    node_tensor(node, "positions", PLAN_ROPE_ROWS);
    node_tensor(node, "cos_sin", PLAN_ROPE_TABLE);
    node_tensor(node, "q", PLAN_PADDED_Q);
    node_tensor(node, "k", PLAN_PADDED_K);
    node_tensor(node, "v", PLAN_PADDED_V);
    node_param(node, "interleaved", b->program->config.rope.interleaved);
}

/* A sequence's only page is its slot, and has all of its positions. */
static void cache(plan_builder *b)
{
    builder_kernel(b, "concat_past_kv");
    plan_node *concat = builder_node(b, OP_CONCAT_PAST_KV);
    node_tensor(concat, "k", PLAN_PADDED_K);
    node_tensor(concat, "v", PLAN_PADDED_V);
    node_tensor(concat, "q_lens", PLAN_Q_LENS);
    node_tensor(concat, "history", PLAN_PAST_LENS);
    node_slots(concat, "k_cache", PLAN_K_CACHE);
    node_slots(concat, "v_cache", PLAN_V_CACHE);
    node_tensor(concat, "slots", PLAN_KV_INDICES);
    node_rows(concat, "slots", AXIS_SEQUENCES, "n_sequences");

    builder_kernel(b, "repeat_kv");
    plan_node *repeat = builder_node(b, OP_REPEAT_KV);
    node_slots(repeat, "k_cache", PLAN_K_CACHE);
    node_slots(repeat, "v_cache", PLAN_V_CACHE);
    node_tensor(repeat, "kv_lens", PLAN_KV_LAST_PAGE_LEN);
    node_tensor(repeat, "slots", PLAN_KV_INDICES);
    node_rows(repeat, "slots", AXIS_SEQUENCES, "n_sequences");
    node_tensor(repeat, "k", PLAN_REPEATED_K);
    node_tensor(repeat, "v", PLAN_REPEATED_V);
}

static void attend(plan_builder *b)
{
    builder_graph(b, "attention");
    plan_node *scores = builder_node(b, OP_ATTENTION_SCORES);
    node_tensor(scores, "q", PLAN_PADDED_Q);
    node_tensor(scores, "k", PLAN_REPEATED_K);
    node_tensor(scores, "scores", PLAN_SCORES);
    plan_node *softmax = builder_node(b, OP_MASKED_SOFTMAX);
    node_tensor(softmax, "scores", PLAN_SCORES);
    node_tensor(softmax, "mask", PLAN_MASK);
    node_tensor(softmax, "probabilities", PLAN_SCORES);
    node_param(softmax, "scale", llama_attention_scale(b));
    plan_node *values = builder_node(b, OP_ATTENTION_VALUES);
    node_tensor(values, "probabilities", PLAN_SCORES);
    node_tensor(values, "v", PLAN_REPEATED_V);
    node_tensor(values, "out", PLAN_PADDED_Q);

    builder_kernel(b, "unpad");
    plan_node *unpad = builder_node(b, OP_UNPAD);
    node_tensor(unpad, "x", PLAN_PADDED_Q);
    node_tensor(unpad, "padding_offsets", PLAN_PADDING_OFFSETS);
    node_columns(unpad, "out", PLAN_ATTN, 0, config_q_hidden_units(&b->program->config),
                 "q_hidden_units");
}

void llama_padded_layer(plan_builder *b)
{
    const model_config *c = &b->program->config;
    if (b->layer == 0)
        llama_norm(b, "attn_norm", WEIGHT_ATTN_NORM);
    else
        add_norm(b, "attn_norm", WEIGHT_ATTN_NORM);
    llama_qkv(b);
    llama_qk_norm(b);
    pad(b);
    cache(b);
    attend(b);
    builder_kernel(b, "attn_output");
    llama_project_to(b, WEIGHT_ATTN_OUTPUT, PLAN_ATTN, config_q_hidden_units(c), "q_hidden_units",
                     false);
    add_norm(b, "ffn_norm", WEIGHT_FFN_NORM);
    llama_up(b);
    builder_kernel(b, "ffn_down");
    llama_project_to(b, WEIGHT_FFN_DOWN, PLAN_FFN, c->intermediate_size, "intermediate_size", true);
}

void llama_padded_logits(plan_builder *b)
{
    add_norm(b, "final_norm", WEIGHT_OUTPUT_NORM);
    builder_kernel(b, "output_rows");
    llama_gather_rows(b, PLAN_X_NORM);
    llama_head(b);
}

/* The k largest logits of each block, then of all blocks; top_p applies to what they keep. */
void llama_padded_sample(plan_builder *b)
{
    static const char *const blocks[] = {"n_blocks", "k"}, *const whole[] = {"1", "k"};
    builder_graph(b, "sample");
    plan_node *first = builder_node(b, OP_TOP_K);
    node_tensor(first, "logits", PLAN_LOGITS);
    node_blocks(first, "values", PLAN_TOP_VALUES, TOP_BLOCKS, TOP_K, blocks);
    node_blocks(first, "ids", PLAN_TOP_IDS, TOP_BLOCKS, TOP_K, blocks);
    plan_node *second = builder_node(b, OP_TOP_K);
    node_tensor(second, "logits", PLAN_TOP_VALUES);
    node_tensor(second, "candidates", PLAN_TOP_IDS);
    node_blocks(second, "values", PLAN_BEST_VALUES, 1, TOP_K, whole);
    node_blocks(second, "ids", PLAN_BEST_IDS, 1, TOP_K, whole);
    plan_node *sample = builder_node(b, OP_SAMPLING);
    node_tensor(sample, "logits", PLAN_BEST_VALUES);
    node_tensor(sample, "candidates", PLAN_BEST_IDS);
    node_param(sample, "top_k_first", 1);
    llama_sampling(sample);
}
