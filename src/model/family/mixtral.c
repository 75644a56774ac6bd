/* Mixtral of Mistral AI: Mistral with experts in place of the FFN. In GGUF its files are of the
 * architecture llama. */
#include "model/family/family.h"

const model_family family_mixtral = {
    .name = "mixtral",
    .gguf = "llama",
    .json = {"MixtralForCausalLM", "mixtral"},
    .tensors = {FAMILY_ATTENTION_TENSORS, [WEIGHT_ROUTER] = "block_sparse_moe.gate",
                [WEIGHT_GATE_EXPERTS] = "block_sparse_moe.experts.*.w1",
                [WEIGHT_UP_EXPERTS] = "block_sparse_moe.experts.*.w3",
                [WEIGHT_DOWN_EXPERTS] = "block_sparse_moe.experts.*.w2"},
    .gguf_pairs = true,
    .context_length = 131072,
    .n_kv_heads = 8,
    .rope_theta = 1000000,
    .experts = true,
    .expert_size_key = "intermediate_size",
    .experts_normalised = true,
};
