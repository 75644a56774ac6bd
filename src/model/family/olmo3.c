/* OLMo 3 of Ai2: OLMo 2 in which three of four layers slide, and RoPE is scaled in the others only.
 */
#include "model/family/family.h"

const model_family family_olmo3 = {
    .name = "olmo3",
    .gguf = "olmo2",
    .json = {"Olmo3ForCausalLM", "olmo3"},
    .tensors = {FAMILY_OLMO_TENSORS},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .norms_span_heads = true,
    .local_rope = true,
    .context_length = 2048,
    .rope_theta = 500000,
    .window = 4096,
    .windowed = WINDOW_MOST,
    .window_interval = 4,
    .window_by_types = true,
};
