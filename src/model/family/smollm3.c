/* SmolLM3 of Hugging Face: Llama in which every fourth layer does not rotate q and k, so that its
 * attention knows no positions (NoPE). */
#include "model/family/family.h"

const model_family family_smollm3 = {
    .name = "smollm3",
    .gguf = "smollm3",
    .json = {"SmolLM3ForCausalLM", "smollm3"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}, {SLOTS_FFN, "mlp_bias", false}},
    .gguf_pairs = true,
    .tied = true,
    .context_length = 32768,
    .n_kv_heads = 4,
    .rope_theta = 2000000,
    .window_by_switch = true,
    .windowed = WINDOW_NO_ROPE,
    .window_by_types = true,
    .no_rope_interval = 4,
};
