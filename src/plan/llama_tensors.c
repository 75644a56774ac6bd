/* The tensors of llama.c's pass: its inputs, what outlives it, and what its steps write. */
#include "plan/builder.h"

#include "model/family/family.h"
#include "op/adjust_logits/adjust_logits.h"

#define DIMS PLAN_DIMS

/* Inputs of a pass, and tensors that outlive it: the RoPE table, the cache. */
static void declare_inputs(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_options *o = &b->program->options;
    const plan_dim n = {"n_tokens", "n", -AXIS_TOKENS},
                   sequences = {"n_sequences", "s", -AXIS_SEQUENCES};
    const plan_dim ends = {"n_sequences + 1", "s + 1", -AXIS_SEQUENCE_ENDS};
    const plan_dim outputs = {"n_outputs", "no", -AXIS_OUTPUTS};
    const plan_dim wanted = {"n_wanted", "nw", -AXIS_WANTED};
    const plan_dim cache[] = {{"n_pages", "np", -AXIS_PAGES},
                              {"page_size", "ps", o->page_size},
                              {"n_kv_heads", "nkvh", c->n_kv_heads},
                              {"head_dim", "dh", c->head_dim}};
    builder_tensor(b, PLAN_TOKEN_IDS, "tokens", PLAN_INPUT, DTYPE_I32, DIMS(n));
    builder_tensor(b, PLAN_POSITION_IDS, "pos", PLAN_INPUT, DTYPE_I32, DIMS(n));
    builder_tensor(b, PLAN_ROPE_ROWS, "rope_rows", PLAN_INPUT, DTYPE_I32, DIMS(n));
    builder_tensor(b, PLAN_QO_INDPTR, "qo_indptr", PLAN_INPUT, DTYPE_I32, DIMS(ends));
    builder_tensor(b, PLAN_KV_INDPTR, "kv_indptr", PLAN_INPUT, DTYPE_I32, DIMS(ends));
    builder_tensor(b, PLAN_KV_INDICES, "kv_indices", PLAN_INPUT, DTYPE_I32,
                   DIMS({"n_page_refs", "npr", -AXIS_PAGE_REFS}));
    builder_tensor(b, PLAN_KV_LAST_PAGE_LEN, "kv_last_page_len", PLAN_INPUT, DTYPE_I32,
                   DIMS(sequences));
    builder_tensor(b, PLAN_OUTPUT_ROWS, "output_rows", PLAN_INPUT, DTYPE_I32, DIMS(wanted));
    builder_tensor(b, PLAN_SEEDS, "seeds", PLAN_INPUT, DTYPE_I64, DIMS(outputs));
    builder_tensor(b, PLAN_SAMPLE_POSITIONS, "sample_pos", PLAN_INPUT, DTYPE_I32, DIMS(outputs));
    builder_tensor(b, PLAN_TEMPERATURES, "temperatures", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_TOP_KS, "top_ks", PLAN_INPUT, DTYPE_I32, DIMS(outputs));
    builder_tensor(b, PLAN_TOP_PS, "top_ps", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_MIN_PS, "min_ps", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_LAST, "last", PLAN_INPUT, DTYPE_I32, DIMS(outputs));
    builder_tensor(b, PLAN_SLOTS, "slots", PLAN_INPUT, DTYPE_I32, DIMS(outputs));
    builder_tensor(b, PLAN_USES, "uses", PLAN_INPUT, DTYPE_I32, DIMS(outputs));
    builder_tensor(b, PLAN_REPETITIONS, "repetitions", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_PRESENCES, "presences", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_FREQUENCIES, "frequencies", PLAN_INPUT, DTYPE_F32, DIMS(outputs));
    builder_tensor(b, PLAN_ROPE_TABLE, "cos_sin", PLAN_TABLE, DTYPE_F32,
                   DIMS({"n_positions", "c", -AXIS_POSITIONS}, {"rotary_dim", "dr", c->rope.dim}));
    if (c->rope_local.dim)
        builder_tensor(
            b, PLAN_ROPE_LOCAL, "cos_sin_local", PLAN_TABLE, DTYPE_F32,
            DIMS({"n_positions", "c", -AXIS_POSITIONS}, {"rotary_dim", "dr", c->rope_local.dim}));
    builder_tensor(b, PLAN_K_CACHE, "k_cache", PLAN_CACHE, o->kv_type, 4, cache);
    builder_tensor(b, PLAN_V_CACHE, "v_cache", PLAN_CACHE, o->kv_type, 4, cache);
}

/* What outlives passes of a sequence beside its cache: a slot for each. */
static void declare_states(plan_builder *b)
{
    const plan_dim slots = {"n_slots", "nsl", b->program->options.max_sequences};
    const plan_dim vocab = {"vocab_size", "v", b->program->config.vocab_size};
    builder_tensor(b, PLAN_HISTORY, "history", PLAN_STATE, DTYPE_I32, DIMS(slots, vocab));
    builder_tensor(b, PLAN_BIAS, "bias", PLAN_STATE, DTYPE_F32, DIMS(slots, vocab));
    builder_tensor(b, PLAN_ALLOWED, "allowed", PLAN_STATE, DTYPE_I32,
                   DIMS(slots, {"n_words", "nw", ADJUST_MASK_WORDS(vocab.size)}));
}

/* In place of gate and up. */
static void declare_experts(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim n = {"n_tokens", "n", -AXIS_TOKENS}, k = {"top_k", "k", c->n_experts_used};
    builder_tensor(b, PLAN_ROUTER_LOGITS, "router", PLAN_ACTIVATION, DTYPE_F32,
                   DIMS(n, {"n_experts", "ne", c->n_experts}));
    builder_tensor(b, PLAN_EXPERT_IDS, "experts", PLAN_ACTIVATION, DTYPE_I32, DIMS(n, k));
    builder_tensor(b, PLAN_EXPERT_SHARES, "shares", PLAN_ACTIVATION, DTYPE_F32, DIMS(n, k));
    builder_tensor(b, PLAN_EXPERTS, "ffn", PLAN_ACTIVATION, DTYPE_F32,
                   DIMS(n, k, {"intermediate_size", "di", c->intermediate_size}));
}

/* What layers work on. */
static void declare_activations(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_options *o = &b->program->options;
    const plan_dim n = {"n_tokens", "n", -AXIS_TOKENS};
    const plan_dim wanted = {"n_wanted", "nw", -AXIS_WANTED};
    const plan_dim hidden = {"hidden_size", "d", c->hidden_size};
    builder_tensor(b, PLAN_X, "x", PLAN_ACTIVATION, o->act_type, DIMS(n, hidden));
    builder_tensor(b, PLAN_ATTN, "attn", PLAN_ACTIVATION, o->act_type,
                   DIMS(n, {"qkv_hidden_units", "(nh + 2 nkvh) dh", config_qkv_hidden_units(c)}));
    if (family_has(c->family, WEIGHT_ATTN_SINKS))
        builder_tensor(b, PLAN_ATTN_SUMS, "attn_sums", PLAN_ACTIVATION, DTYPE_F32,
                       DIMS(n, {"n_heads", "nh", c->n_heads}));
    if (c->n_experts)
        declare_experts(b);
    else
        builder_tensor(b, PLAN_FFN, "ffn", PLAN_ACTIVATION, o->act_type,
                       DIMS(n, {"2 * intermediate_size", "2 di", 2 * c->intermediate_size}));
    builder_tensor(b, PLAN_X_NORM, "x_", PLAN_ACTIVATION, o->act_type, DIMS(n, hidden));
    builder_tensor(b, PLAN_X_OUT, "x_out", PLAN_OUTPUT, DTYPE_F32, DIMS(wanted, hidden));
    if (llama_gathers(b)) {
        const model_config *whole = &b->program->whole;
        builder_tensor(b, PLAN_ATTN_ALL, "attn_all", PLAN_ACTIVATION, DTYPE_F32,
                       DIMS(n, {"all_q_hidden_units", "anh dh", config_q_hidden_units(whole)}));
        const plan_dim all = {"all_intermediate_size", "adi", whole->intermediate_size};
        const plan_dim k = {"top_k", "k", c->n_experts_used};
        if (c->n_experts)
            builder_tensor(b, PLAN_FFN_ALL, "ffn_all", PLAN_ACTIVATION, DTYPE_F32, DIMS(n, k, all));
        else
            builder_tensor(b, PLAN_FFN_ALL, "ffn_all", PLAN_ACTIVATION, DTYPE_F32, DIMS(n, all));
    }
    if (llama_has_ranks(b) && c->norms_span_heads)
        builder_tensor(b, PLAN_QK_ALL, "qk_all", PLAN_ACTIVATION, DTYPE_F32,
                       DIMS(n, {"all_qk_hidden_units", "(anh + ankvh) dh",
                                config_q_hidden_units(&b->program->whole) +
                                    config_kv_hidden_units(&b->program->whole)}));
}

/* What comes after the layers: logits, and the token chosen. */
static void declare_outputs(plan_builder *b)
{
    const model_config *c = &b->program->config;
    const plan_dim outputs = {"n_outputs", "no", -AXIS_OUTPUTS};
    builder_tensor(b, PLAN_LOGITS, "logits", PLAN_OUTPUT, DTYPE_F32,
                   DIMS(outputs, {"vocab_size", "v", c->vocab_size}));
    builder_tensor(b, PLAN_NEXT, "next", PLAN_OUTPUT, DTYPE_I32, DIMS(outputs));
}
#undef DIMS

void llama_tensors(plan_builder *b)
{
    declare_inputs(b);
    declare_states(b);
    declare_activations(b);
    declare_outputs(b);
    llama_lora_tensors(b);
}
