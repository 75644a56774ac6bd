/* Qwen 3 of Alibaba, the mixtures of experts: attention as in the dense ones. */
#include "model/family/family.h"

const model_family family_qwen3moe = {
    .name = "qwen3moe",
    .gguf = "qwen3moe",
    .json = {"Qwen3MoeForCausalLM", "qwen3_moe"},
    .tensors = {FAMILY_EXPERTS_TENSORS, [WEIGHT_ATTN_Q_NORM] = "self_attn.q_norm",
                [WEIGHT_ATTN_K_NORM] = "self_attn.k_norm"},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .context_length = 32768,
    .n_kv_heads = 4,
    .window = 4096,
    .window_by_switch = true,
    .experts = true,
    .expert_size_key = "moe_intermediate_size",
    .experts_normalised = true,
    .experts_switch = true,
};
