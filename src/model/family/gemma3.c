/* Gemma 3 of Google, its text models: as Gemma 2, with norms of q and k in place of caps. Of six
 * layers five slide, and turn by a base of their own. */
#include "model/family/family.h"

const model_family family_gemma3 = {
    .name = "gemma3",
    .gguf = "gemma3",
    .json = {"Gemma3ForCausalLM", "gemma3_text"},
    .tensors = {FAMILY_GEMMA_TENSORS, [WEIGHT_ATTN_Q_NORM] = "self_attn.q_norm",
                [WEIGHT_ATTN_K_NORM] = "self_attn.k_norm"},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}},
    .activation = FAMILY_GELU_TANH,
    .norms_add_one = true,
    .scales_embedding = true,
    .scales = SCALES_CAPS | SCALES_QUERY,
    .usual = {.attention = 1.0 / 16},
    .scores_by_hidden = 62,
    .tied = true,
    .context_length = 131072,
    .n_kv_heads = 4,
    .head_dim = 256,
    .rope_theta = 1000000,
    .local_rope = true,
    .local_theta = 10000,
    .window = 4096,
    .windowed = WINDOW_MOST,
    .window_interval = 6,
    .window_by_types = true,
};
