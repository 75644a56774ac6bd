/* Ministral 8B: Mistral whose attention slides in some layers, as layer_types says. GGUF files of
 * it are of the architecture llama. */
#include "model/family/family.h"

const model_family family_ministral = {
    .name = "ministral",
    .gguf = "llama",
    .json = {"MinistralForCausalLM", "ministral"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .gguf_pairs = true,
    .context_length = 131072,
    .n_kv_heads = 8,
    .window = 4096,
    .window_by_types = true,
};
