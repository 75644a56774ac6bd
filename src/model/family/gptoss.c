/* gpt-oss of OpenAI: experts with biases and a bounded activation, heads with sinks, and windows in
 * every other layer. */
#include "model/family/family.h"

const model_family family_gptoss = {
    .name = "gpt-oss",
    .gguf = "gpt-oss",
    .json = {"GptOssForCausalLM", "gpt_oss"},
    .tensors = {FAMILY_ATTENTION_TENSORS, [WEIGHT_ATTN_SINKS] = "self_attn.sinks.",
                [WEIGHT_ROUTER] = "mlp.router", [WEIGHT_GATE_EXPERTS] = "mlp.experts.gate_up_proj.",
                [WEIGHT_UP_EXPERTS] = "mlp.experts.gate_up_proj.",
                [WEIGHT_DOWN_EXPERTS] = "mlp.experts.down_proj."},
    .gguf_ffn_norm = "post_attention_norm",
    .biases = {{SLOTS_ATTENTION, "attention_bias", true},
               {SLOT(ROUTER) | SLOTS_EXPERTS, NULL, true}},
    .context_length = 131072,
    .n_kv_heads = 8,
    .head_dim = 64,
    .rope_theta = 150000,
    .window = 128,
    .windowed = WINDOW_MOST,
    .window_interval = 2,
    .window_by_types = true,
    .yarn_exact = true,
    .experts = true,
    .expert_size_key = "intermediate_size",
    .experts_normalised = true,
    .swiglu = {.alpha = 1.702, .limit = 7, .added = 1},
};
