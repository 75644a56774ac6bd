/* Qwen 3 of Alibaba, the dense ones: norms of each query and key head before RoPE. */
#include "model/family/family.h"

const model_family family_qwen3 = {
    .name = "qwen3",
    .gguf = "qwen3",
    .json = {"Qwen3ForCausalLM", "qwen3"},
    .tensors = {FAMILY_LLAMA_TENSORS, [WEIGHT_ATTN_Q_NORM] = "self_attn.q_norm",
                [WEIGHT_ATTN_K_NORM] = "self_attn.k_norm"},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .context_length = 32768,
    .n_kv_heads = 32,
    .head_dim = 128,
    .window = 4096,
    .window_by_switch = true,
    .windowed = WINDOW_LAST,
    .window_by_types = true,
};
