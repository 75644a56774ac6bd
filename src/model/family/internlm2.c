/* InternLM2 of Shanghai AI Laboratory: Llama with other names, and q, k and v in one tensor whose
 * rows are, for each KV head, its query heads, its key and its value. */
#include "model/family/family.h"

const model_family family_internlm2 = {
    .name = "internlm2",
    .gguf = "internlm2",
    .json = {"InternLM2ForCausalLM", "internlm2"},
    .tensors = {[WEIGHT_TOKEN_EMBD] = "model.tok_embeddings",
                [WEIGHT_ATTN_NORM] = "attention_norm",
                [WEIGHT_ATTN_OUTPUT] = "attention.wo",
                [WEIGHT_FFN_NORM] = "ffn_norm",
                [WEIGHT_FFN_GATE] = "feed_forward.w1",
                [WEIGHT_FFN_UP] = "feed_forward.w3",
                [WEIGHT_FFN_DOWN] = "feed_forward.w2",
                [WEIGHT_OUTPUT_NORM] = "model.norm",
                [WEIGHT_OUTPUT] = "output"},
    .fused = {{SLOTS_QKV, "attention.wqkv", NULL, true}},
    .unused = {"attention.rotary_emb.inv_freq"},
    .biases = {{SLOTS_ATTENTION, "bias", true}},
    .gguf_pairs = true,
    .gguf_needs_output = true,
    .context_length = 2048,
};
