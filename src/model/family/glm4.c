/* GLM-4-0414 of Z.ai, the dense ones: norms also after attention and the MLP, gate and up in one
 * tensor, and RoPE on neighbouring pairs of half of each head. */
#include "model/family/family.h"

const model_family family_glm4 = {
    .name = "glm4",
    .gguf = "glm4",
    .json = {"Glm4ForCausalLM", "glm4"},
    .tensors = {[WEIGHT_TOKEN_EMBD] = "model.embed_tokens",
                [WEIGHT_ATTN_NORM] = "input_layernorm",
                [WEIGHT_ATTN_Q] = "self_attn.q_proj",
                [WEIGHT_ATTN_K] = "self_attn.k_proj",
                [WEIGHT_ATTN_V] = "self_attn.v_proj",
                [WEIGHT_ATTN_OUTPUT] = "self_attn.o_proj",
                [WEIGHT_ATTN_POST_NORM] = "post_self_attn_layernorm",
                [WEIGHT_FFN_NORM] = "post_attention_layernorm",
                [WEIGHT_FFN_DOWN] = "mlp.down_proj",
                [WEIGHT_FFN_POST_NORM] = "post_mlp_layernorm",
                [WEIGHT_OUTPUT_NORM] = "model.norm",
                [WEIGHT_OUTPUT] = "lm_head"},
    .fused = {{SLOT(FFN_GATE) | SLOT(FFN_UP), "mlp.gate_up_proj", "ffn_up"}},
    .biases = {{SLOTS_QKV, "attention_bias", false}},
    .pairs = true,
    .gguf_pairs = true,
    .context_length = 131072,
    .n_kv_heads = 2,
    .head_dim = 128,
    .partial_rotary = 0.5,
};
