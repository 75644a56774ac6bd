/* Phi 3, 3.5 and 4 of Microsoft, the dense ones: q, k and v in one tensor, and gate and up in
 * another, in GGUF too. Phi 4 mini turns three quarters of each head. */
#include "model/family/family.h"

const model_family family_phi3 = {
    .name = "phi3",
    .gguf = "phi3",
    .json = {"Phi3ForCausalLM", "phi3"},
    .tensors = {[WEIGHT_TOKEN_EMBD] = "model.embed_tokens",
                [WEIGHT_ATTN_NORM] = "input_layernorm",
                [WEIGHT_ATTN_OUTPUT] = "self_attn.o_proj",
                [WEIGHT_FFN_NORM] = "post_attention_layernorm",
                [WEIGHT_FFN_DOWN] = "mlp.down_proj",
                [WEIGHT_OUTPUT_NORM] = "model.norm",
                [WEIGHT_OUTPUT] = "lm_head"},
    .fused = {{SLOTS_QKV, "self_attn.qkv_proj", "attn_qkv"},
              {SLOT(FFN_GATE) | SLOT(FFN_UP), "mlp.gate_up_proj", "ffn_up"}},
    .context_length = 4096,
    .partial_rotary = 1,
};
