"""Small random models as directories of safetensors, and LoRA adapters of them: directories as PEFT
writes them, and GGUF files as llama.cpp's converter does."""
import json
import struct
from pathlib import Path

import numpy as np

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD, VOCAB = 64, 96, 2, 4, 2, 16, 128
LINEARS = {"self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
           "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
           "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
           "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}
FUSED = {"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
         "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
NORMS = {"llama": ("input_layernorm", "post_attention_layernorm"),
         "phi3": ("input_layernorm", "post_attention_layernorm"),
         "qwen2": ("input_layernorm", "post_attention_layernorm"),
         "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm")}


def safetensors(path, tensors):
    """Writes float arrays; a pair (type, bytes, shape) stands for another type."""
    header, data = {}, b""
    for name, value in tensors.items():
        kind, raw, shape = value if isinstance(value, tuple) else (
            {"float32": "F32", "float16": "F16"}[value.dtype.name], value.tobytes(), value.shape)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return "BF16", ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes(), values.shape


def linears(family):
    """The linear layers as the family's files have them: {name: (rows, columns)}."""
    shapes = dict(LINEARS)
    for fused, parts in FUSED.items() if family == "phi3" else ():
        shapes[fused] = (sum(shapes[p][0] for p in parts), HIDDEN)
        for p in parts:
            del shapes[p]
    return shapes


def random_model(family="llama", seed=1, layers=LAYERS):
    """{name: float32 array} of a model."""
    draw = np.random.default_rng(seed)
    tensors = {"model.embed_tokens.weight": draw.normal(0, 1, (VOCAB, HIDDEN)), "model.norm.weight": np.ones(HIDDEN),
               "lm_head.weight": draw.normal(0, HIDDEN ** -0.5, (VOCAB, HIDDEN))}
    for layer in range(layers):
        before = f"model.layers.{layer}."
        for norm in NORMS[family]:
            tensors[before + norm + ".weight"] = draw.normal(1, 0.1, HIDDEN)
        for name, (rows, columns) in linears(family).items():
            tensors[before + name + ".weight"] = draw.normal(0, columns ** -0.5, (rows, columns))
            if family == "qwen2" and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                tensors[before + name + ".bias"] = draw.normal(0, 0.1, rows)
        if family == "olmo2":
            tensors[before + "self_attn.q_norm.weight"] = np.ones(HEADS * HEAD)
            tensors[before + "self_attn.k_norm.weight"] = np.ones(KV_HEADS * HEAD)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def write_model(folder, tensors, family="llama", layers=LAYERS, kind=None):
    names = {"llama": "LlamaForCausalLM", "phi3": "Phi3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "olmo2": "Olmo2ForCausalLM"}
    folder = Path(folder)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": [names[family]], "model_type": family, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32"}))
    safetensors(folder / "model.safetensors", {n: kind(v) if kind and v.ndim == 2 else v for n, v in tensors.items()})
    return folder


def random_adapter(rank=4, seed=1, targets=None, family="llama", layers=LAYERS):
    """{module: (A, B)}"""
    draw = np.random.default_rng(seed + 1000)
    return {f"model.layers.{layer}.{name}": (draw.normal(0, columns ** -0.5, (rank, columns)).astype(np.float32),
                                             draw.normal(0, 0.3, (rows, rank)).astype(np.float32))
            for layer in range(layers) for name, (rows, columns) in linears(family).items()
            if targets is None or name.split(".")[1] in targets}


def write_peft(folder, pairs, alpha=8, config=None, kind=None, extra=None):
    folder = Path(folder)
    folder.mkdir()
    rank = next(iter(pairs.values()))[0].shape[0] if pairs else 4
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "task_type": "CAUSAL_LM",
        "target_modules": sorted({n.rsplit(".", 1)[1] for n in pairs}), **(config or {})}))
    tensors = {}
    for name, (a, b) in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = kind(a) if kind else a
        tensors[f"base_model.model.{name}.lora_B.weight"] = kind(b) if kind else b
    safetensors(folder / "adapter_model.safetensors", {**tensors, **(extra or {})})
    return folder


def to_pairs(rows, heads):
    """Rows of q or k in the order of GGUF's Llama: for RoPE on pairs."""
    return rows.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, pairs, alpha=8.0, architecture="llama", keys=None, half=False):
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    given = {"general.type": "adapter", "general.architecture": architecture, "adapter.type": "lora",
             "adapter.lora.alpha": alpha, **(keys or {})}
    given = {key: value for key, value in given.items() if value is not None}
    head = b"".join(text(k) + (struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<I", 8) + text(v))
                    for k, v in given.items())
    tensors = {}
    for name, (a, b) in pairs.items():
        layer, module = name.split(".", 3)[2:]
        if architecture == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
            b = to_pairs(b, HEADS if "q_proj" in module else KV_HEADS)
        tensors[f"blk.{layer}.{GGUF_NAMES[module]}.weight.lora_a"] = a
        tensors[f"blk.{layer}.{GGUF_NAMES[module]}.weight.lora_b"] = b
    infos, data = b"", b""
    for name, value in tensors.items():
        value = value.astype(np.float16 if half else np.float32)
        infos += text(name) + struct.pack("<I", 2) + struct.pack("<QQ", *reversed(value.shape))
        infos += struct.pack("<IQ", 1 if half else 0, len(data))
        data += value.tobytes() + b"\0" * (-value.nbytes % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(given)) + head + infos
    Path(path).write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def merged(tensors, pairs, scaling):
    """The model with scaling * B A added to its weights, in float64 and rounded once."""
    out = dict(tensors)
    for name, (a, b) in pairs.items():
        out[name + ".weight"] = (out[name + ".weight"].astype(np.float64)
                                 + scaling * b.astype(np.float64) @ a.astype(np.float64)).astype(np.float32)
    return out


# of golden/models/llama-text.gguf
TEXT_SHAPES = {"self_attn.q_proj": (24, 24), "self_attn.k_proj": (8, 24), "self_attn.v_proj": (8, 24),
               "self_attn.o_proj": (24, 24), "mlp.gate_proj": (32, 24), "mlp.up_proj": (32, 24), "mlp.down_proj": (24, 32)}


def text_adapter(folder, rank, seed):
    """A PEFT directory for that model."""
    draw = np.random.default_rng(seed)
    return write_peft(folder, {f"model.layers.{layer}.{module}": (draw.normal(0, 0.3, (rank, columns)).astype(np.float32),
                                                                  draw.normal(0, 0.3, (rows, rank)).astype(np.float32))
                               for layer in range(2) for module, (rows, columns) in TEXT_SHAPES.items()})
