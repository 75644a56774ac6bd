/* Gemma 2 of Google: four norms a layer, GELU, embeddings times sqrt(hidden_size), caps of scores
 * and logits, and every other layer slides. */
#include "model/family/family.h"

const model_family family_gemma2 = {
    .name = "gemma2",
    .gguf = "gemma2",
    .json = {"Gemma2ForCausalLM", "gemma2"},
    .tensors = {FAMILY_GEMMA_TENSORS},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .activation = FAMILY_GELU_TANH,
    .norms_add_one = true,
    .scales_embedding = true,
    .scales = SCALES_CAPS | SCALES_QUERY,
    .usual = {.attention = 1.0 / 16, .attention_cap = 50, .logits_cap = 30},
    .scores_by_hidden = 46,
    .tied = true,
    .context_length = 8192,
    .n_kv_heads = 4,
    .head_dim = 256,
    .window = 4096,
    .windowed = WINDOW_MOST,
    .window_interval = 2,
    .window_by_types = true,
};
