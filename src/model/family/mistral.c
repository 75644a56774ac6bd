/* Mistral 7B and Mistral Nemo: Llama without biases. The first version's attention slides over
 * 4,096 positions. In GGUF they are files of the architecture llama. */
#include "model/family/family.h"

const model_family family_mistral = {
    .name = "mistral",
    .gguf = "llama",
    .json = {"MistralForCausalLM", "mistral"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .unused = {"self_attn.rotary_emb.inv_freq"},
    .gguf_pairs = true,
    .context_length = 131072,
    .n_kv_heads = 8,
    .window = 4096,
};
