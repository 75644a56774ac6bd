/* OLMoE of Ai2: norms of q and k over all heads, and shares of experts that do not add up to 1. */
#include "model/family/family.h"

const model_family family_olmoe = {
    .name = "olmoe",
    .gguf = "olmoe",
    .json = {"OlmoeForCausalLM", "olmoe"},
    .tensors = {FAMILY_EXPERTS_TENSORS, [WEIGHT_ATTN_Q_NORM] = "self_attn.q_norm",
                [WEIGHT_ATTN_K_NORM] = "self_attn.k_norm"},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .context_length = 4096,
    .n_kv_heads = 0,
    .norms_span_heads = true,
    .experts = true,
    .expert_size_key = "intermediate_size",
    .experts_switch = true,
};
