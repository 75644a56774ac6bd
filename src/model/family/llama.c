/* Llama 1 to 3 of Meta, and the many models built like them (SmolLM2, Yi, TinyLlama, ...). */
#include "model/family/family.h"

const model_family family_llama = {
    .name = "llama",
    .gguf = "llama",
    .json = {"LlamaForCausalLM", "llama"},
    .tensors = {FAMILY_LLAMA_TENSORS},
    .unused = {"self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"},
    .biases = {{SLOTS_ATTENTION, "attention_bias", false}, {SLOTS_FFN, "mlp_bias", false}},
    .gguf_pairs = true,
    .context_length = 2048,
};
