/* OLMo 2 of Ai2: norms after attention and the MLP, none before, and norms of q and k over all
 * heads. GGUF files of OLMo 3 are of this architecture too. */
#include "model/family/family.h"

const model_family family_olmo2 = {
    .name = "olmo2",
    .gguf = "olmo2",
    .json = {"Olmo2ForCausalLM", "olmo2"},
    .tensors = {FAMILY_OLMO_TENSORS},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .norms_span_heads = true,
    .local_rope = true,
    .context_length = 2048,
    .windowed = WINDOW_MOST,
    .window_interval = 4,
};
