"""The small models of model_goldens.py: the config.json of each family's variants."""

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def llama(**changes):
    """A Llama config.json of the smallest kind; `changes` overrides keys, None removes one."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 24,
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": "null",
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 71,
    }
    config.update(changes)
    config = {key: value for key, value in config.items() if value is not None}
    return {key: None if value == "null" else value for key, value in config.items()}


def internlm2(**changes):
    """An InternLM2 config.json: the same keys but for `bias`, which covers wqkv and wo."""
    return llama(architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False,
                 auto_map={"AutoConfig": "configuration_internlm2.InternLM2Config",
                           "AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
                 attention_bias=None, mlp_bias=None, rope_theta=1000000, **changes)


def qwen2(**changes):
    """A Qwen 2 config.json: biases on q, k and v whatever it says, a window that is not used."""
    return llama(**{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                    "attention_bias": None, "mlp_bias": None, "rope_scaling": None,
                    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 16,
                    "max_window_layers": 1, "use_sliding_window": False} | changes)


def qwen3(**changes):
    """A Qwen 3 config.json: norms of q and k, a head_dim of its own."""
    return qwen2(**{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
                    "attention_bias": False, "head_dim": 16} | changes)


def smollm3(**changes):
    """A SmolLM3 config.json: each second layer does not rotate q and k, by no_rope_layers."""
    return llama(**{"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
                    "num_hidden_layers": 5, "rope_scaling": None, "rope_theta": 5000000.0,
                    "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                    "use_sliding_window": False, "sliding_window": "null", "pad_token_id": 0}
                   | changes)


def gemma2(**changes):
    """A Gemma 2 config.json: caps of scores and logits, every other layer slides."""
    return llama(**{"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "mlp_bias": None,
                    "hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 16,
                    "num_hidden_layers": 3, "query_pre_attn_scalar": 16, "sliding_window": 6,
                    "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-6,
                    "tie_word_embeddings": True, "rope_scaling": None} | changes)


def gemma3(**changes):
    """A Gemma 3 config.json: norms of q and k, two bases of RoPE, each third layer does not slide."""
    return gemma2(**{"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
                     "attn_logit_softcapping": "null", "final_logit_softcapping": "null",
                     "rope_theta": 1000.0, "rope_local_base_freq": 50.0, "num_hidden_layers": 7,
                     "sliding_window_pattern": 3, "query_pre_attn_scalar": 24, "sliding_window": 5}
                  | changes)


def phi3(**changes):
    """A Phi 3 config.json: q, k and v in one tensor, gate and up in another."""
    return llama(**{"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "mlp_bias": None,
                    "rope_scaling": None, "pad_token_id": 0} | changes)


def granite(**changes):
    """A Granite config.json: multipliers of embeddings, scores, residuals and logits."""
    return llama(**{"architectures": ["GraniteForCausalLM"], "model_type": "granite",
                    "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                    "residual_multiplier": 0.4, "logits_scaling": 5.0, "rope_scaling": None,
                    "tie_word_embeddings": True} | changes)


def glm4(**changes):
    """A GLM 4 config.json: norms after attention and the MLP, half of each head turns, by pairs."""
    return llama(**{"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "mlp_bias": None,
                    "attention_bias": True, "partial_rotary_factor": 0.5, "head_dim": 16,
                    "rope_scaling": None, "pad_token_id": 0} | changes)


def olmo2(**changes):
    """An OLMo 2 config.json: norms after attention and the MLP, those of q and k over all heads."""
    return llama(**{"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "mlp_bias": None,
                    "rope_scaling": None, "pad_token_id": 0} | changes)


def cohere2(**changes):
    """A Command-R7B config.json: layer norms, attention and the MLP side by side, layers that slide and turn."""
    return llama(**{"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2", "mlp_bias": None,
                    "rms_norm_eps": None, "layer_norm_eps": 1e-5, "logit_scale": 0.25, "sliding_window": 6,
                    "sliding_window_pattern": 4, "num_hidden_layers": 5, "tie_word_embeddings": True,
                    "rope_scaling": None, "pad_token_id": 0} | changes)


LLAMA_NAMES = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

def longrope(pairs):
    """The rope_scaling of a longrope: a factor for each pair of a head."""
    return {"type": "longrope", "short_factor": [1.0 + 0.25 * i for i in range(pairs)],
            "long_factor": [1.5 + 2.0 * i for i in range(pairs)]}


# name: (description, config, storage, prompt lengths, the config without the special feature)
VARIANTS = {
    "llama-minimal": (
        "the oldest config.json: no KV head count, no rope_theta; as many KV heads as heads; F32",
        llama(hidden_size=24, intermediate_size=32, num_attention_heads=3, num_key_value_heads=None,
              rope_theta=None, rope_scaling=None, attention_bias=None, mlp_bias=None,
              rms_norm_eps=1e-6, torch_dtype="float32", vocab_size=96),
        "F32", [17], None),
    "llama-tied-gqa3": (
        "tied output, 3 query heads to a KV head, theta 1e5 (as SmolLM2)",
        llama(hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
              tie_word_embeddings=True, rope_theta=100000, rope_interleaved=False),
        "BF16", [20], {"rope_theta": 10000}),
    "llama-gqa4-sharded": (
        "4 query heads to a KV head, two shards with an index, rope_scaling of type default",
        llama(num_attention_heads=8, vocab_size=131, rope_scaling={"rope_type": "default"}),
        "BF16 sharded", [18], None),
    "llama-gqa8-f16": (
        "8 query heads to one KV head, F16, rope_parameters of type default, dtype",
        llama(num_attention_heads=8, num_key_value_heads=1, head_dim=8, torch_dtype=None,
              dtype="float16", rope_theta=None, rope_scaling=None, vocab_size=113,
              rope_parameters={"rope_type": "default", "rope_theta": 5000.0}),
        "F16", [16], {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "llama-attention-bias": (
        "biases on q, k, v and the output projection",
        llama(attention_bias=True), "BF16", [15], {"attention_bias": False}),
    "llama-mlp-bias": (
        "biases on gate, up and down, and on attention; tied",
        llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        "BF16", [14], {"mlp_bias": False}),
    "llama-linear": (
        "linear RoPE scaling as rope_scaling {type}",
        llama(rope_scaling={"type": "linear", "factor": 4.0}),
        "BF16", [24], {"rope_scaling": None}),
    "llama-linear-parameters": (
        "linear RoPE scaling as rope_parameters {rope_type}",
        llama(rope_scaling=None, rope_theta=None, torch_dtype=None, dtype="bfloat16",
              rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 20000.0}),
        "BF16", [24], {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}),
    "llama-dynamic": (
        "dynamic NTK RoPE scaling as rope_scaling {type}: prompts beyond and within 16 positions",
        llama(max_position_embeddings=16, rope_scaling={"type": "dynamic", "factor": 2.0}),
        "BF16", [24, 12], {"rope_scaling": None}),
    "llama-dynamic-parameters": (
        "dynamic NTK RoPE scaling as rope_parameters {rope_type}",
        llama(max_position_embeddings=12, rope_scaling=None, rope_theta=None, torch_dtype=None,
              dtype="bfloat16",
              rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 30000.0}),
        "BF16", [24], {"rope_parameters": {"rope_type": "default", "rope_theta": 30000.0}}),
    "llama3-old": (
        "llama3 RoPE scaling as rope_scaling {rope_type}, tied, head_dim 64, a list of EOS",
        llama(hidden_size=24, intermediate_size=32, head_dim=64, num_attention_heads=2,
              num_key_value_heads=1, tie_word_embeddings=True, rope_theta=500000.0,
              rope_scaling={**LLAMA3, "rope_type": "llama3"}, eos_token_id=[2, 5, 9],
              vocab_size=128),
        "BF16", [24], {"rope_scaling": None}),
    "llama3-parameters": (
        "llama3 RoPE scaling as rope_parameters, untied, head_dim 16, dtype, a list of EOS",
        llama(head_dim=16, rope_theta=None, rope_scaling=None, torch_dtype=None, dtype="bfloat16",
              eos_token_id=[2, 7],
              rope_parameters={**LLAMA3, "factor": 32.0, "rope_type": "llama3",
                               "rope_theta": 500000.0}),
        "BF16", [24], {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama-head128": (
        "head_dim 128, which is not hidden_size / heads",
        llama(hidden_size=16, head_dim=128, num_attention_heads=2, num_key_value_heads=1,
              vocab_size=101),
        "BF16", [13], None),
    "mistral": (
        "a Mistral config.json: sliding_window null, explicit head_dim",
        llama(architectures=["MistralForCausalLM"], model_type="mistral", attention_bias=None,
              mlp_bias=None, head_dim=16, sliding_window="null", rope_theta=1000000.0,
              rope_scaling=None, vocab_size=103),
        "BF16", [19], {"rope_theta": 10000.0}),
    "internlm2": (
        "InternLM2: fused wqkv interleaved per KV group, no bias",
        internlm2(num_attention_heads=4, num_key_value_heads=2), "BF16", [21], None),
    "internlm2-bias-dynamic": (
        "InternLM2 with bias on wqkv and wo and dynamic NTK: prompts beyond and within 16",
        internlm2(hidden_size=48, num_attention_heads=6, num_key_value_heads=2,
                  max_position_embeddings=16,
                  rope_scaling={"type": "dynamic", "factor": 3.0}) | {"bias": True},
        "BF16", [24, 16], {"rope_scaling": None}),
    "llama-text": (
        "a whole small model: byte-level BPE tokenizer, ChatML template, generation settings",
        llama(hidden_size=24, intermediate_size=32, num_attention_heads=3, num_key_value_heads=1,
              vocab_size=288),
        "BF16", [24], None),
    "qwen2": (
        "biases on q, k and v that config.json does not mention; tied; a window that is not used",
        qwen2(tie_word_embeddings=True, num_attention_heads=7, num_key_value_heads=1,
              hidden_size=56), "BF16", [24], LLAMA_NAMES | {"attention_bias": False}),
    "qwen2-rope-parameters": (
        "Qwen 2 as transformers 5 writes it: rope_parameters, layer_types; untied; F16",
        qwen2(rope_theta=None, torch_dtype=None, dtype="float16", sliding_window=None,
              layer_types=["full_attention", "full_attention"],
              rope_parameters={"rope_type": "default", "rope_theta": 20000.0}),
        "F16", [21], {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "qwen3": (
        "norms of q and k, heads wider than hidden_size / heads; tied",
        qwen3(tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=2),
        "BF16", [23], LLAMA_NAMES),
    "qwen3-bias": (
        "norms of q and k, and biases on q, k, v and the output projection; untied; F32",
        qwen3(attention_bias=True, head_dim=24, num_key_value_heads=1, torch_dtype="float32"),
        "F32", [18], {"attention_bias": False}),
    "qwen2-window-last": (
        "a window in the layers from max_window_layers on",
        qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=1, num_hidden_layers=3),
        "BF16", [24], {"max_window_layers": 0}),
    "qwen3-window-types": (
        "a window in some layers, by layer_types",
        qwen3(use_sliding_window=True, sliding_window=5, num_hidden_layers=4,
              layer_types=["sliding_attention", "full_attention", "full_attention",
                           "sliding_attention"]),
        "BF16", [22], {"use_sliding_window": False, "layer_types": None}),
    "ministral": (
        "Ministral: layer_types without a switch",
        llama(architectures=["MinistralForCausalLM"], model_type="ministral", attention_bias=None,
              mlp_bias=None, head_dim=16, sliding_window=7, rope_theta=1000000.0, rope_scaling=None,
              num_hidden_layers=3,
              layer_types=["full_attention", "sliding_attention", "full_attention"]),
        "BF16", [25], {"layer_types": ["full_attention"] * 3}),
    "smollm3": (
        "SmolLM3 without the keys of its layers: each fourth does not rotate q and k; tied",
        smollm3(), "BF16", [24], {"no_rope_layers": [1] * 5}),
    "smollm3-layers": (
        "no_rope_layers, which also slide; untied; biases; F32",
        smollm3(no_rope_layers=[1, 0, 1, 1, 0], use_sliding_window=True, sliding_window=6,
                attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                torch_dtype="float32"),
        "F32", [23], {"no_rope_layers": [1, 1, 1, 1, 0]}),
    "qwen2-yarn": (
        "yarn as Qwen's cards write it for long contexts",
        qwen2(head_dim=None, hidden_size=128, rope_theta=100.0, max_position_embeddings=64,
              rope_scaling={"rope_type": "yarn", "factor": 4.0,
                            "original_max_position_embeddings": 16}),
        "BF16", [24], {"rope_scaling": None}),
    "qwen3-yarn": (
        "yarn with bounds of its own that are not rounded, and mscale",
        qwen3(head_dim=32, rope_theta=None, rope_scaling=None, max_position_embeddings=64,
              rope_parameters={"rope_type": "yarn", "factor": 8.0, "rope_theta": 50.0,
                               "beta_fast": 3.0, "beta_slow": 0.3, "truncate": False,
                               "mscale": 1.5, "mscale_all_dim": 0.5,
                               "original_max_position_embeddings": 20}),
        "F32", [24], {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "rope_theta": 50.0,
                                          "original_max_position_embeddings": 20}}),
    "llama-longrope": (
        "longrope: factors of long texts for a context beyond the original one",
        llama(max_position_embeddings=512, rope_scaling=longrope(4), original_max_position_embeddings=16),
        "BF16", [24], {"rope_scaling": None}),
    "llama-longrope-short": (
        "longrope within the original context; an attention factor of its own",
        llama(max_position_embeddings=512, original_max_position_embeddings=128,
              rope_scaling=longrope(4) | {"attention_factor": 1.3}),
        "BF16", [24], {"rope_scaling": None}),
    "gemma2": (
        "Gemma 2: four norms less 1, GELU, soft caps, scaled embeddings, a window in every other layer",
        gemma2(), "BF16", [24], {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2-scalar": (
        "Gemma 2 with query_pre_attn_scalar, layer_types and biases; without caps; F32",
        gemma2(query_pre_attn_scalar=100, attn_logit_softcapping="null",
               final_logit_softcapping="null", attention_bias=True, torch_dtype="float32",
               layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
        "F32", [20], {"query_pre_attn_scalar": 16}),
    "gemma3": (
        "Gemma 3: norms of q and k, RoPE of layers that slide, linear scaling of the others",
        gemma3(rope_scaling={"rope_type": "linear", "factor": 8.0}),
        "BF16", [24], {"rope_local_base_freq": 1000.0}),
    "gemma3-types": (
        "Gemma 3 as transformers 5 writes it: layer_types, rope_parameters of each kind; F16",
        gemma3(rope_theta=None, rope_local_base_freq=None, sliding_window_pattern=None,
               num_hidden_layers=3, torch_dtype=None, dtype="float16", query_pre_attn_scalar=16,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"],
               rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 700.0},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}),
        "F16", [22], {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 30.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}}),
    "phi3": (
        "Phi 3: fused q, k and v, fused gate and up, a window",
        phi3(sliding_window=9), "BF16", [24], {"sliding_window": None}),
    "phi3-longrope": (
        "Phi 4 mini: longrope of three quarters of each head, tied; F32",
        phi3(head_dim=None, hidden_size=64, partial_rotary_factor=0.75, tie_word_embeddings=True,
             original_max_position_embeddings=16, max_position_embeddings=512, torch_dtype="float32",
             rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                           "long_factor": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]}),
        "F32", [24], {"rope_scaling": None}),
    "granite": (
        "Granite: multipliers of embeddings, scores, residuals and logits",
        granite(), "BF16", [24], {"residual_multiplier": None}),
    "granite-bias": (
        "Granite with biases, without a multiplier of residuals and without keys of the others; F32",
        granite(residual_multiplier=None, attention_multiplier=None, embedding_multiplier=None,
                logits_scaling=None, attention_bias=True, mlp_bias=True, torch_dtype="float32",
                tie_word_embeddings=False, head_dim=4, rope_theta=100.0),
        "F32", [18], {"rope_theta": 10000.0}),
    "glm4": (
        "GLM 4: four norms, RoPE on pairs of half of each head, biases of q, k and v",
        glm4(), "BF16", [24], {"partial_rotary_factor": 1.0}),
    "olmo2": (
        "OLMo 2: norms only after attention and the MLP, norms of q and k over all heads",
        olmo2(), "BF16", [24], {"rope_theta": 100.0}),
    "olmo3": (
        "OLMo 3: layers that slide, yarn in the others; F32",
        olmo2(architectures=["Olmo3ForCausalLM"], model_type="olmo3", num_hidden_layers=5,
              sliding_window=5, rope_theta=None, rope_scaling=None, torch_dtype="float32",
              attention_bias=True, hidden_size=64, max_position_embeddings=64,
              rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                               "full_attention": {"rope_type": "yarn", "factor": 4.0,
                                                  "attention_factor": 1.2, "rope_theta": 50.0,
                                                  "original_max_position_embeddings": 16}}),
        "F32", [24], {"rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
}

# Later ones, whose places leave the seeds of the others as they are.
LATER_VARIANTS = {
    "cohere2": (
        "Command-R7B: layer norms without a bias, a parallel MLP, layers that slide and turn by pairs, and one that does neither",
        cohere2(), "BF16", [24], {"rope_theta": 100.0}),
    "cohere2-types": (
        "layer_types of Command-R7B, the usual logit_scale; F32",
        cohere2(num_hidden_layers=3, sliding_window_pattern=None, logit_scale=None, torch_dtype="float32",
                layer_types=["full_attention", "sliding_attention", "full_attention"]),
        "F32", [18], {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
}
