/* The Llama forward pass on one page.
 *
 *     x      [n_tokens, hidden_size]        the residual stream, alive throughout
 *     x_     [n_tokens, hidden_size]        normalised, alive from a norm to the product after it
 *     attn   [n_tokens, qkv_hidden_units]   q, k and v; attention writes its output over q
 *     ffn    [n_tokens, 2 * intermediate_size]  gate and up; the activation writes over gate
 *
 * In a mixture of experts, in place of ffn:
 *
 *     router  [n_tokens, n_experts]         logits, by which route chooses each token's experts
 *     experts, shares  [n_tokens, top_k]    which they are, and how much each counts
 *     ffn     [n_tokens, top_k, intermediate_size]  what the activation leaves of each
 *
 * The tensors are declared in llama_tensors.c, the mixture is in llama_experts.c. Pages of their
 * own write the same pass with other operators: llama_flashinfer.c, llama_padded.c.
 *
 * Rules rewrite what this page writes (src/lower): for few tokens several of its nodes are one
 * operator.
 *
 * With several ranks each computes its own heads and its own part of the FFN (attn and ffn have
 * only these columns). In the cut `gather` each also computes its own columns of x, from the rows
 * of all ranks:
 *
 *     attn_all  [n_tokens, q_hidden_units of all ranks]   gathered before the output projection
 *     ffn_all   [n_tokens, intermediate_size of all]      gathered before the down projection; of a
 *               mixture [n_tokens, top_k, intermediate_size of all]
 *
 * and x is gathered after both, or x_ where a norm follows. In the cut `reduce` the output and the
 * down projection make partial sums, which an all-reduce adds; only rank 0 adds residual and bias.
 * The logits' columns are gathered in both, and q and k where a norm spans the heads of all ranks.
 */
#include "plan/builder.h"

#include "model/family/family.h"

#include <math.h>

/* out = `from` less the mean of each row, which a layer norm subtracts. */
static void llama_center(plan_builder *b, plan_tensor_id from, plan_tensor_id out)
{
    plan_node *node = builder_node(b, OP_CENTER);
    node_tensor(node, "x", from);
    node_tensor(node, "out", out);
}

/* x_ = the norm of `from`. */
static void llama_norm_of(plan_builder *b, const char *step, plan_tensor_id from,
                          weight_slot weight)
{
    const bool centers = b->program->config.family->norms_center;
    builder_graph_if(b, centers, step);
    if (centers) llama_center(b, from, PLAN_X_NORM);
    plan_node *node = builder_node(b, OP_RMS_NORM);
    node_tensor(node, "x", centers ? PLAN_X_NORM : from);
    node_weight(node, "weight", weight);
    node_tensor(node, "out", PLAN_X_NORM);
    node_param(node, "eps", b->program->config.rms_norm_eps);
}

void llama_norm(plan_builder *b, const char *step, weight_slot weight)
{
    llama_norm_of(b, step, PLAN_X, weight);
}

/* A tensor times a number, where it is not 0, and bounded by a soft cap, where there is one. */
static void scale(plan_builder *b, const char *step, plan_tensor_id id, double factor, double cap)
{
    if (factor == 0 && cap == 0) return;
    builder_kernel(b, step);
    plan_node *node = builder_node(b, OP_SCALE);
    node_tensor(node, "x", id);
    node_tensor(node, "out", id);
    node_param(node, "factor", factor == 0 ? 1 : factor);
    node_param(node, "soft_cap", cap);
}

/* What an output projection multiplies, in place of what it adds to the residual: there are no
 * biases then. */
static void scale_residual(plan_builder *b, plan_tensor_id id, int64_t count, const char *symbol)
{
    const double factor = b->program->config.scales.residual;
    if (factor == 0) return;
    plan_node *node = builder_node(b, OP_SCALE);
    node_columns(node, "x", id, 0, count, symbol);
    node_columns(node, "out", id, 0, count, symbol);
    node_param(node, "factor", factor);
}

void llama_norm_before(plan_builder *b, const char *step, weight_slot norm)
{
    if (family_has(b->program->config.family, norm)) llama_norm(b, step, norm);
}

/* What a projection reads: x, or its norm; side by side attention and the MLP read the same. */
static plan_tensor_id projected(const plan_builder *b, weight_slot weight)
{
    const model_family *family = b->program->config.family;
    const bool attention = SLOTS_QKV >> weight & 1 || family->parallel;
    return family_has(family, attention ? WEIGHT_ATTN_NORM : WEIGHT_FFN_NORM) ? PLAN_X_NORM
                                                                              : PLAN_X;
}

/* out[:, first .. first + count) = x_ weight^T + bias */
static void project(plan_builder *b, weight_slot weight, plan_tensor_id out, int64_t first,
                    int64_t count, const char *symbol)
{
    plan_node *node = builder_node(b, OP_LINEAR);
    node_tensor(node, "x", projected(b, weight));
    node_weight(node, "weight", weight);
    node_bias(node, "bias", weight);
    node_columns(node, "out", out, first, count, symbol);
}

/* What adapters add to products of x_. */
static void adapt_projections(plan_builder *b, const lora_output *outputs, int n_outputs)
{
    llama_adapt(b, projected(b, outputs[0].slot), b->program->config.hidden_size, "hidden_size",
                outputs, n_outputs);
}

/* What adapters add to the output or the down projection. */
static void adapt_output(plan_builder *b, weight_slot weight, plan_tensor_id in, int64_t count,
                         const char *symbol, plan_tensor_id out)
{
    const lora_output output = {weight, out, 0, b->program->config.hidden_size, "hidden_size"};
    llama_adapt(b, in, count, symbol, &output, 1);
}

/* x[:, own] += in_all weight^T + bias: the rank's columns of x, from the rows of all ranks. */
void llama_project_to(plan_builder *b, weight_slot weight, plan_tensor_id in, int64_t count,
                      const char *symbol, bool bias)
{
    plan_node *node = builder_node(b, OP_LINEAR);
    node_columns(node, "x", in, 0, count, symbol);
    node_weight(node, "weight", weight);
    if (bias && b->program->options.rank == 0) node_bias(node, "bias", weight);
    node_tensor(node, "out", PLAN_X_NORM);
    adapt_output(b, weight, in, count, symbol, PLAN_X_NORM);
}

/* The rank's columns of `out` from the rows of all ranks, added to it or not. */
static void project_own(plan_builder *b, weight_slot weight, plan_tensor_id in_all,
                        plan_tensor_id out)
{
    const program_span own = b->program->shard.hidden;
    plan_node *node = builder_node(b, OP_LINEAR);
    node_tensor(node, "x", in_all);
    node_weight(node, "weight", weight);
    node_bias(node, "bias", weight);
    if (out == PLAN_X)
        node_columns(node, "residual", out, own.first, own.count, "own_hidden_units");
    node_columns(node, "out", out, own.first, own.count, "own_hidden_units");
}

/* Whether a norm is of what all ranks have made, which it needs before it is added to x. */
static bool norms_after_ranks(const plan_builder *b, weight_slot norm)
{
    return llama_has_ranks(b) && family_has(b->program->config.family, norm);
}

/* x += norm(in[:, 0 .. count) weight^T + bias) */
static void project_and_norm(plan_builder *b, weight_slot weight, weight_slot norm,
                             plan_tensor_id in, int64_t count, const char *symbol)
{
    if (llama_gathers(b))
        project_own(b, weight, in == PLAN_FFN ? PLAN_FFN_ALL : PLAN_ATTN_ALL, PLAN_X_NORM);
    else
        llama_project_to(b, weight, in, count, symbol, true);
    if (norms_after_ranks(b, norm)) llama_exchange(b, PLAN_X_NORM);
    llama_norm_of(b, norm == WEIGHT_ATTN_POST_NORM ? "attn_post_norm" : "ffn_post_norm",
                  PLAN_X_NORM, norm);
    builder_kernel(b, norm == WEIGHT_ATTN_POST_NORM ? "attn_add" : "ffn_add");
    plan_node *add = builder_node(b, OP_ADD);
    node_tensor(add, "a", PLAN_X);
    node_tensor(add, "b", PLAN_X_NORM);
    node_tensor(add, "out", PLAN_X);
}

/* x += in[:, 0 .. count) weight^T + bias, or the rank's partial sum of that. */
static void project_back(plan_builder *b, weight_slot weight, plan_tensor_id in, int64_t count,
                         const char *symbol)
{
    const weight_slot post =
        weight == WEIGHT_FFN_DOWN ? WEIGHT_FFN_POST_NORM : WEIGHT_ATTN_POST_NORM;
    if (family_has(b->program->config.family, post)) {
        project_and_norm(b, weight, post, in, count, symbol);
        return;
    }
    if (llama_gathers(b)) {
        project_own(b, weight, in == PLAN_FFN ? PLAN_FFN_ALL : PLAN_ATTN_ALL, PLAN_X);
        return;
    }
    plan_node *node = builder_node(b, OP_LINEAR);
    node_columns(node, "x", in, 0, count, symbol);
    node_weight(node, "weight", weight);
    if (b->program->options.rank == 0) {
        node_bias(node, "bias", weight);
        node_tensor(node, "residual", PLAN_X);
    }
    node_tensor(node, "out", PLAN_X);
    adapt_output(b, weight, in, count, symbol, PLAN_X);
}

/* x on every rank: the sum over all ranks, or all ranks' columns. With one rank there is nothing to
 * do, and nothing is left to do where `norm` was of the sum. */
static void exchange(plan_builder *b, const char *step, weight_slot norm)
{
    builder_graph(b, step);
    if (!norms_after_ranks(b, norm)) llama_exchange(b, PLAN_X);
}

static void gather_attention(plan_builder *b)
{
    const program_span heads = b->program->shard.heads;
    const int64_t dh = b->program->config.head_dim;
    if (llama_gathers(b))
        llama_gather(b, PLAN_ATTN, 0, PLAN_ATTN_ALL,
                     (program_span){heads.first * dh, heads.count * dh});
}

static void gather_ffn(plan_builder *b)
{
    if (llama_gathers(b))
        llama_gather(b, PLAN_FFN, 0, PLAN_FFN_ALL, b->program->shard.intermediate);
}

/* The rank's columns of the logits, and then those of all ranks. */
static void logits_columns(plan_builder *b, plan_node *head)
{
    const program_span own = b->program->shard.vocab;
    if (b->program->options.ranks == 1) {
        node_tensor(head, "out", PLAN_LOGITS);
        return;
    }
    node_columns(head, "out", PLAN_LOGITS, own.first, own.count, "own_vocab");
    llama_gather(b, PLAN_LOGITS, own.first, PLAN_LOGITS, own);
}

void llama_paging(plan_node *node)
{
    node_tensor(node, "qo_indptr", PLAN_QO_INDPTR);
    node_tensor(node, "kv_indptr", PLAN_KV_INDPTR);
    node_tensor(node, "kv_indices", PLAN_KV_INDICES);
    node_tensor(node, "kv_last_page_len", PLAN_KV_LAST_PAGE_LEN);
    node_tensor(node, "k_cache", PLAN_K_CACHE);
    node_tensor(node, "v_cache", PLAN_V_CACHE);
}

double llama_attention_scale(const plan_builder *b)
{
    const model_config *c = &b->program->config;
    return c->scales.attention != 0 ? c->scales.attention : 1 / sqrt((double)c->head_dim);
}

void llama_attention_params(const plan_builder *b, plan_node *node)
{
    node_param(node, "sm_scale", llama_attention_scale(b));
    node_param(node, "causal", 1);
    if (b->program->config.scales.attention_cap != 0)
        node_param(node, "logits_soft_cap", b->program->config.scales.attention_cap);
    if (program_window(b->program, b->layer))
        node_param(node, "window", (double)program_window(b->program, b->layer));
}

void llama_qkv(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c), kv = config_kv_hidden_units(c);
    builder_graph(b, "attn_qkv");
    project(b, WEIGHT_ATTN_Q, PLAN_ATTN, 0, q, "q_hidden_units");
    project(b, WEIGHT_ATTN_K, PLAN_ATTN, q, kv, "kv_hidden_units");
    project(b, WEIGHT_ATTN_V, PLAN_ATTN, q + kv, kv, "kv_hidden_units");
    const lora_output outputs[] = {{WEIGHT_ATTN_Q, PLAN_ATTN, 0, q, "q_hidden_units"},
                                   {WEIGHT_ATTN_K, PLAN_ATTN, q, kv, "kv_hidden_units"},
                                   {WEIGHT_ATTN_V, PLAN_ATTN, q + kv, kv, "kv_hidden_units"}};
    adapt_projections(b, outputs, 3);
    if (!llama_has_ranks(b) || !c->norms_span_heads) return;
    const model_config *all = &b->program->whole;
    llama_gather_heads(b, 0, b->program->shard.heads, 0, all->n_heads);
    llama_gather_heads(b, q, b->program->shard.kv_heads, config_q_hidden_units(all),
                       all->n_kv_heads);
}

/* The norm of columns [first, first + count) of a tensor, in place. */
static void norm_columns(plan_builder *b, weight_slot weight, plan_tensor_id id, int64_t first,
                         int64_t count, const char *symbol)
{
    plan_node *norm = builder_node(b, OP_RMS_NORM);
    node_columns(norm, "x", id, first, count, symbol);
    node_weight(norm, "weight", weight);
    node_columns(norm, "out", id, first, count, symbol);
    node_param(norm, "eps", b->program->config.rms_norm_eps);
}

/* Norms of q and of k over all heads: with several ranks each rank normalises those of all. */
static void norm_all_heads(plan_builder *b)
{
    const model_config *c = &b->program->config, *all = &b->program->whole;
    const program_shard *own = &b->program->shard;
    const int64_t q = config_q_hidden_units(all), kv = config_kv_hidden_units(all);
    const plan_tensor_id id = llama_has_ranks(b) ? PLAN_QK_ALL : PLAN_ATTN;
    norm_columns(b, WEIGHT_ATTN_Q_NORM, id, 0, q, "q_hidden_units");
    norm_columns(b, WEIGHT_ATTN_K_NORM, id, q, kv, "kv_hidden_units");
    if (!llama_has_ranks(b)) return;
    llama_take_heads(b, 0, own->heads, 0);
    llama_take_heads(b, config_q_hidden_units(c), own->kv_heads, q);
}

void llama_qk_norm(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c), kv = config_kv_hidden_units(c);
    if (!family_has(c->family, WEIGHT_ATTN_Q_NORM)) return;
    builder_graph_if(b, c->norms_span_heads, "qk_norm");
    if (c->norms_span_heads) {
        norm_all_heads(b);
        return;
    }
    plan_node *norms = builder_node(b, OP_HEAD_NORM);
    node_heads(norms, "q", PLAN_ATTN, 0, q, c->n_heads, "n_heads");
    node_heads(norms, "k", PLAN_ATTN, q, kv, c->n_kv_heads, "n_kv_heads");
    node_weight(norms, "q_weight", WEIGHT_ATTN_Q_NORM);
    node_weight(norms, "k_weight", WEIGHT_ATTN_K_NORM);
    node_param(norms, "eps", c->rms_norm_eps);
}

void llama_rope(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c), kv = config_kv_hidden_units(c);
    if (layer_set_has(&c->no_rope, b->layer)) return;
    builder_kernel(b, "rope");
    plan_node *rope = builder_node(b, OP_ROPE);
    node_tensor(rope, "positions", PLAN_ROPE_ROWS);
    node_heads(rope, "q", PLAN_ATTN, 0, q, c->n_heads, "n_heads");
    node_heads(rope, "k", PLAN_ATTN, q, kv, c->n_kv_heads, "n_kv_heads");
    node_tensor(rope, "cos_sin", program_rope_table(b->program, b->layer));
    node_param(rope, "interleaved", c->rope.interleaved);
}

void llama_append(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c), kv = config_kv_hidden_units(c);
    plan_node *append = builder_node(b, OP_KV_APPEND);
    node_heads(append, "k", PLAN_ATTN, q, kv, c->n_kv_heads, "n_kv_heads");
    node_heads(append, "v", PLAN_ATTN, q + kv, kv, c->n_kv_heads, "n_kv_heads");
    node_tensor(append, "positions", PLAN_POSITION_IDS);
    llama_paging(append);
}

/* What sinks leave of attention's output, where heads have them. */
static void attend_sinks(plan_builder *b, plan_node *attend)
{
    const model_config *c = &b->program->config;
    if (!family_has(c->family, WEIGHT_ATTN_SINKS)) return;
    node_tensor(attend, "lse", PLAN_ATTN_SUMS);
    plan_node *sinks = builder_node(b, OP_ATTENTION_SINKS);
    node_heads(sinks, "v", PLAN_ATTN, 0, config_q_hidden_units(c), c->n_heads, "n_heads");
    node_tensor(sinks, "lse", PLAN_ATTN_SUMS);
    node_weight(sinks, "sinks", WEIGHT_ATTN_SINKS);
}

static void attention(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const int64_t q = config_q_hidden_units(c);

    llama_norm_before(b, "attn_norm", WEIGHT_ATTN_NORM);
    llama_qkv(b);
    llama_qk_norm(b);
    llama_rope(b);

    builder_graph(b, "attention");
    llama_append(b);
    plan_node *attend = builder_node(b, OP_PAGED_PREFILL);
    node_heads(attend, "q", PLAN_ATTN, 0, q, c->n_heads, "n_heads");
    llama_paging(attend);
    node_heads(attend, "out", PLAN_ATTN, 0, q, c->n_heads, "n_heads");
    llama_attention_params(b, attend);
    attend_sinks(b, attend);
    scale_residual(b, PLAN_ATTN, q, "q_hidden_units");
    gather_attention(b);

    builder_graph_if(
        b, norms_after_ranks(b, WEIGHT_ATTN_POST_NORM) || llama_adapts(b, SLOT(ATTN_OUTPUT)),
        "attn_output");
    project_back(b, WEIGHT_ATTN_OUTPUT, PLAN_ATTN, q, "q_hidden_units");
    exchange(b, "attn_allreduce", WEIGHT_ATTN_POST_NORM);
}

/* Gate and up, and the activation over gate. */
void llama_up(plan_builder *b)
{
    const int64_t di = b->program->config.intermediate_size;
    builder_graph(b, "ffn_up");
    project(b, WEIGHT_FFN_GATE, PLAN_FFN, 0, di, "intermediate_size");
    project(b, WEIGHT_FFN_UP, PLAN_FFN, di, di, "intermediate_size");
    const lora_output outputs[] = {{WEIGHT_FFN_GATE, PLAN_FFN, 0, di, "intermediate_size"},
                                   {WEIGHT_FFN_UP, PLAN_FFN, di, di, "intermediate_size"}};
    adapt_projections(b, outputs, 2);

    static const op_code activations[] = {
        [FAMILY_SILU] = OP_SILU_AND_MUL, [FAMILY_GELU_TANH] = OP_GELU_AND_MUL};
    builder_graph_if(b, llama_gathers(b) || b->program->config.scales.residual != 0, "activation");
    plan_node *gated = builder_node(b, activations[b->program->config.family->activation]);
    node_tensor(gated, "x", PLAN_FFN);
    node_columns(gated, "out", PLAN_FFN, 0, di, "intermediate_size");
    scale_residual(b, PLAN_FFN, di, "intermediate_size");
    gather_ffn(b);
}

static void feed_forward(plan_builder *b)
{
    const int64_t di = b->program->config.intermediate_size;

    llama_norm_before(b, "ffn_norm", WEIGHT_FFN_NORM);
    llama_up(b);

    builder_graph_if(b,
                     norms_after_ranks(b, WEIGHT_FFN_POST_NORM) || llama_adapts(b, SLOT(FFN_DOWN)),
                     "ffn_down");
    project_back(b, WEIGHT_FFN_DOWN, PLAN_FFN, di, "intermediate_size");
    exchange(b, "ffn_allreduce", WEIGHT_FFN_POST_NORM);
}

static void llama_layer(plan_builder *b)
{
    attention(b);
    if (b->program->config.n_experts)
        llama_mix_experts(b);
    else
        feed_forward(b);
}

void llama_gather_rows(plan_builder *b, plan_tensor_id from)
{
    plan_node *gather = builder_node(b, OP_EMBEDDING);
    node_tensor(gather, "ids", PLAN_OUTPUT_ROWS);
    node_tensor(gather, "table", from);
    node_tensor(gather, "out", PLAN_X_OUT);
}

/* Gathers the rows whose logits are wanted; the rest of x is not needed after it. */
static void llama_logits(plan_builder *b)
{
    builder_graph(b, "final_norm");
    llama_gather_rows(b, PLAN_X);
    if (b->program->config.family->norms_center) llama_center(b, PLAN_X_OUT, PLAN_X_OUT);
    plan_node *norm = builder_node(b, OP_RMS_NORM);
    node_tensor(norm, "x", PLAN_X_OUT);
    node_weight(norm, "weight", WEIGHT_OUTPUT_NORM);
    node_tensor(norm, "out", PLAN_X_OUT);
    node_param(norm, "eps", b->program->config.rms_norm_eps);
    llama_head(b);
}

void llama_head(plan_builder *b)
{
    builder_graph_if(b, b->program->options.ranks > 1, "lm_head");
    plan_node *head = builder_node(b, OP_LINEAR);
    node_tensor(head, "x", PLAN_X_OUT);
    node_rows(head, "x", AXIS_OUTPUTS, "n_outputs");
    node_weight(head, "weight", WEIGHT_OUTPUT);
    node_bias(head, "bias", WEIGHT_OUTPUT);
    logits_columns(b, head);
    scale(b, "logits_scale", PLAN_LOGITS, b->program->config.scales.logits,
          b->program->config.scales.logits_cap);
}

/* From logits to the next token. */
static void choose(plan_builder *b)
{
    builder_kernel(b, "adjust_logits");
    plan_node *adjust = builder_node(b, OP_ADJUST_LOGITS);
    node_tensor(adjust, "logits", PLAN_LOGITS);
    node_tensor(adjust, "last", PLAN_LAST);
    node_tensor(adjust, "slots", PLAN_SLOTS);
    node_tensor(adjust, "uses", PLAN_USES);
    node_tensor(adjust, "repetitions", PLAN_REPETITIONS);
    node_tensor(adjust, "presences", PLAN_PRESENCES);
    node_tensor(adjust, "frequencies", PLAN_FREQUENCIES);
    node_tensor(adjust, "history", PLAN_HISTORY);
    node_tensor(adjust, "bias", PLAN_BIAS);
    node_tensor(adjust, "allowed", PLAN_ALLOWED);

    if (b->program->options.form == PLAN_PADDED) {
        llama_padded_sample(b);
        return;
    }
    builder_kernel(b, "sample");
    plan_node *sample = builder_node(b, OP_SAMPLING);
    node_tensor(sample, "logits", PLAN_LOGITS);
    llama_sampling(sample);
}

void llama_sampling(plan_node *sample)
{
    node_tensor(sample, "seeds", PLAN_SEEDS);
    node_tensor(sample, "positions", PLAN_SAMPLE_POSITIONS);
    node_tensor(sample, "temperatures", PLAN_TEMPERATURES);
    node_tensor(sample, "top_ks", PLAN_TOP_KS);
    node_tensor(sample, "top_ps", PLAN_TOP_PS);
    node_tensor(sample, "min_ps", PLAN_MIN_PS);
    node_tensor(sample, "ids", PLAN_NEXT);
}

static void embed(plan_builder *b)
{
    builder_kernel(b, "embedding");
    plan_node *embed = builder_node(b, OP_EMBEDDING);
    node_tensor(embed, "ids", PLAN_TOKEN_IDS);
    node_weight(embed, "table", WEIGHT_TOKEN_EMBD);
    node_tensor(embed, "out", PLAN_X);
    scale(b, "embedding_scale", PLAN_X, b->program->config.scales.embedding, 0);
}

/* The layers of a form, and what follows them. */
typedef struct page {
    void (*layer)(plan_builder *b), (*logits)(plan_builder *b);
} page;

static page page_of(const plan_options *o)
{
    if (o->form == PLAN_FLASHINFER) return (page){llama_flashinfer_layer, llama_flashinfer_logits};
    if (o->form == PLAN_PADDED) return (page){llama_padded_layer, llama_padded_logits};
    return (page){llama_layer, llama_logits};
}

void llama_forward(plan_builder *b)
{
    const plan_options *o = &b->program->options;
    const page page = page_of(o);
    llama_tensors(b);
    if (o->form == PLAN_FLASHINFER) llama_flashinfer_tensors(b);
    if (o->form == PLAN_PADDED) llama_padded_tensors(b);
    b->layer = -1;
    builder_graph(b, "setup"); /* the host maps the inputs */
    embed(b);
    if (o->form == PLAN_PADDED) llama_padded_setup(b);
    for (b->layer = 0; b->layer < b->program->config.n_layers; b->layer++)
        page.layer(b);
    b->layer = -1;
    page.logits(b);
    choose(b);
}
