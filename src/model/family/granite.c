/* Granite 3 and 4 of IBM, the dense ones: Llama with multipliers of embeddings, scores, residuals
 * and logits. */
#include "model/family/family.h"

const model_family family_granite = {
    .name = "granite",
    .gguf = "granite",
    .json = {"GraniteForCausalLM", "granite"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}, {SLOTS_FFN, "mlp_bias", false}},
    .scales = SCALES_MULTIPLIERS,
    .usual = {.attention = 1},
    .gguf_pairs = true,
    .context_length = 2048,
};
