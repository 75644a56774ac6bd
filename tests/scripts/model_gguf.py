"""GGUF files of the small models, and blocks of quantised weights: see model_goldens.py."""

import gguf
import numpy as np

from model_experts import MXFP4, add_gguf_keys, gguf_experts, gpt_oss_gguf, in_mxfp4
from model_variants import llama
from model_weights import MERGES, SPECIAL, TEMPLATE, sizes, vocabulary


def permute(weights, heads):
    """Rows of a q or k projection (or its bias) from NeoX order, pairs (i, i + D/2), to interleaved
    order, pairs (2i, 2i + 1), within each head, as llama.cpp's converter does it."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def rope_divisors(config):
    """rope_freqs.weight of a llama3 model: what each inverse frequency is divided by."""
    scaling = config.get("rope_scaling") or config["rope_parameters"]
    theta = config.get("rope_theta") or scaling["rope_theta"]
    head_dim = sizes(config)[4]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((old / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.layers": "blk",
}


# Where norms follow attention and the MLP; "post_attention_layernorm" is of another place then.
GLM4_NORMS = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
POST_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(name, config=None):
    has_post_norms = config and config["model_type"] in ("gemma2", "gemma3_text", "olmo2")
    if config and config["model_type"] == "glm4":
        for old, new in GLM4_NORMS.items():
            name = name.replace(old, new)
    for old, new in (GGUF_NAMES | (POST_NORMS if has_post_norms else {})).items():
        name = name.replace(old, new)
    return name


def gguf_architecture(config):
    """general.architecture of a config.json's model."""
    kind = config["model_type"]
    return {"mistral": "llama", "ministral": "llama", "gemma3_text": "gemma3", "mixtral": "llama",
            "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}.get(kind, kind)


def gguf_tensors(config, weights):
    """Llama weights under GGUF's names as numpy float32, q and k in interleaved order but for the
    families whose GGUF files keep the order of safetensors."""
    _, _, heads, kv_heads, _, _, _ = sizes(config)
    pairs = config["model_type"] in ("llama", "internlm2", "mistral", "ministral", "smollm3",
                                     "granite", "mixtral")
    tensors = {}
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        if pairs and "q_proj" in name:
            values = permute(values, heads)
        if pairs and "k_proj" in name:
            values = permute(values, kv_heads)
        if "norm" in name and config["model_type"].startswith("gemma"):
            values = values + 1
        tensors[gguf_name(name, config)] = np.ascontiguousarray(values)
    return gpt_oss_gguf(tensors) if config["model_type"] == "gpt_oss" else gguf_experts(tensors)


def write_gemma(writer, config):
    """The keys that a Gemma's file has besides."""
    if "layer_types" not in config:
        writer.add_sliding_window(config["sliding_window"])
        if "sliding_window_pattern" in config:
            writer.add_sliding_window_pattern(config["sliding_window_pattern"])
    if config.get("final_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    local = config.get("rope_parameters", {}).get("sliding_attention", {}).get("rope_theta")
    if config["model_type"] == "gemma3_text":
        writer.add_rope_freq_base_swa(local or config["rope_local_base_freq"])


def write_gguf(path, arch, config, tensors, types, split=0, add_tokenizer=None):
    """`tensors` (NAME: float32 array, or bytes already in blocks) of GGUF type `types(NAME)`."""
    hidden, intermediate, heads, kv_heads, head_dim, layers, vocab = sizes(config)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_name(path.stem)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(intermediate)
    add_gguf_keys(writer, config)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 1)))
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
        writer.add_sliding_window(config["sliding_window"])
    writer.add_vocab_size(vocab)
    if config.get("sliding_window") and "layer_types" in config:
        writer.add_sliding_window(config["sliding_window"])
        if config["model_type"] != "gpt_oss":  # whose architecture says which layers slide
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config["model_type"].startswith("gemma"):
        write_gemma(writer, config)
    if config["model_type"] == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = scaling.get("full_attention", scaling)
    writer.add_rope_freq_base(float(config.get("rope_theta") or scaling.get("rope_theta", 10000)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(config))
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(np.sqrt(1 + np.log(factor) / np.log(original)))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.float32(scaling[f"{length}_factor"]))
    else:
        assert kind == "default", f"GGUF has no {kind} scaling"
    if add_tokenizer:
        add_tokenizer(writer)
    else:
        writer.add_tokenizer_model("none")
    for name, values in tensors.items():
        if values.dtype == np.uint8:
            writer.add_tensor(name, values, raw_dtype=types(name))
        elif values.ndim == 1 or name.endswith(".bias"):
            writer.add_tensor(name, values)
        else:
            kind = MXFP4 if in_mxfp4(config) and "_exps.weight" in name else types(name)
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# file: (description, the variant whose weights and logits it shares, GGUF type, tensors a file)
GGUF_VARIANTS = {
    "llama-tied-gqa3": ("tied: no output tensor", "llama-tied-gqa3", "BF16", 0),
    "llama-mlp-bias": ("biases, q's and k's permuted too", "llama-mlp-bias", "F32", 0),
    "llama-gqa8-f16": ("8 query heads to one KV head", "llama-gqa8-f16", "F16", 0),
    "llama-linear": ("linear RoPE scaling in metadata", "llama-linear", "BF16", 0),
    "llama3-parameters": ("rope_freqs.weight", "llama3-parameters", "BF16", 0),
    "llama-head128": ("key_length 128; split in files of 12 tensors", "llama-head128", "BF16", 12),
    "internlm2": ("architecture internlm2", "internlm2", "BF16", 0),
    "llama-text": ("a whole small model: tokenizer and template in the file", "llama-text", "BF16",
                   0),
    "mistral": ("Mistral under the architecture llama", "mistral", "BF16", 0),
    "qwen2": ("architecture qwen2: rows of q and k for RoPE on halves, biases", "qwen2", "BF16", 0),
    "qwen3": ("architecture qwen3: norms of q and k", "qwen3", "BF16", 0),
    "ministral": ("sliding_window_pattern under the architecture llama", "ministral", "BF16", 0),
    "smollm3": ("architecture smollm3: each fourth layer does not rotate q and k", "smollm3", "BF16",
                0),
    "qwen2-yarn": ("yarn in metadata", "qwen2-yarn", "BF16", 0),
    "gemma2": ("architecture gemma2: norms plus 1, caps", "gemma2", "BF16", 0),
    "phi3-longrope": ("architecture phi3: fused tensors, tensors of factors", "phi3-longrope", "F32", 0),
    "granite": ("architecture granite: multipliers", "granite", "BF16", 0),
    "glm4": ("architecture glm4: fused gate and up, norms after attention and the MLP", "glm4", "BF16",
             0),
    "olmo2": ("architecture olmo2", "olmo2", "BF16", 0),
    "gemma3-types": ("architecture gemma3: two bases of RoPE, a flag for each layer", "gemma3-types",
                     "F16", 0),
}

LATER_GGUF_VARIANTS = {
    "cohere2": ("architecture cohere2: layer norms, a parallel MLP", "cohere2", "BF16", 0),
}

# Block types, one to a projection; the logits come from what gguf-py decodes.
BLOCKS = {
    "llama-blocks32": ("the 32-element block types, one to a kind of projection",
                       llama(hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=97),
                       {"token_embd": "Q8_0", "attn_q": "Q4_0", "attn_k": "Q4_1", "attn_v": "Q5_0",
                        "attn_output": "Q5_1", "ffn_gate": "Q8_0", "ffn_up": "Q4_0",
                        "ffn_down": "Q5_1", "output": "Q4_1"}),
    "llama-blocks256": ("the 256-element block types, one to a kind of projection; one layer",
                        llama(hidden_size=256, intermediate_size=256, num_attention_heads=4,
                              num_key_value_heads=2, head_dim=8, vocab_size=67,
                              num_hidden_layers=1),
                        {"token_embd": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q3_K", "attn_v": "Q2_K",
                         "attn_output": "Q8_0", "ffn_gate": "Q3_K", "ffn_up": "Q4_K",
                         "ffn_down": "Q5_K", "output": "Q2_K"}),
}


def random_blocks(random, kind, shape, deviation):
    """Random blocks of a K type: arbitrary bytes, with half-precision scales at their places chosen
    so that the decoded values have about the deviation asked for and no mean."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = random.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    # Deviation of the integers before the scale, and the ratio min / scale that centres them.
    spread, centre = {"Q2_K": (9.0, 1.5), "Q3_K": (40.0, 0), "Q4_K": (190.0, 7.5),
                      "Q5_K": (390.0, 15.5), "Q6_K": (1350.0, 0)}[kind.name]
    scale = deviation / spread * random.uniform(0.7, 1.3, rows.shape[:2])
    for place, factor in zip(places[kind.name], (1.0, centre)):
        halves = (scale * factor).astype(np.float16)
        rows[:, :, place:place + 2] = halves[..., None].view(np.uint8)
    return rows.reshape(shape[0], -1)


def add_gguf_tokenizer(writer):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = vocabulary()
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL
                            for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def decode_gguf(paths, out):
    """Writes the parts of a GGUF as one file with every tensor decoded to float32, so that
    llama.cpp rounds no activation to the type of a weight."""
    readers = [gguf.GGUFReader(path) for path in paths]
    fields = {key: field for key, field in readers[0].fields.items()
              if not key.startswith(("GGUF.", "split."))}
    writer = gguf.GGUFWriter(out, fields.pop("general.architecture").contents())
    for key, field in fields.items():
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in (tensor for reader in readers for tensor in reader.tensors):
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
