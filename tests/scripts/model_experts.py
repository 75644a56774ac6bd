"""Mixtures of experts among the small models of model_goldens.py: their config.json, and tensors as checkpoints and
GGUF files have them, from those of transformers' modules."""

import gguf
import numpy as np

import torch

from model_variants import llama, qwen3


def qwen3moe(**changes):
    """A Qwen 3 MoE config.json: experts of a size of their own."""
    return qwen3(**{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "max_window_layers": None,
                    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
                    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []} | changes)


def mixtral(**changes):
    """A Mixtral config.json."""
    return llama(**{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_bias": None,
                    "mlp_bias": None, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": "null",
                    "num_local_experts": 5, "num_experts_per_tok": 2} | changes)


def olmoe(**changes):
    """An OLMoE config.json: norms of q and k over all heads, shares that do not add up to 1."""
    return llama(**{"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "mlp_bias": None,
                    "rope_scaling": None, "clip_qkv": "null", "num_key_value_heads": 4, "num_experts": 6,
                    "num_experts_per_tok": 3,
                    "norm_topk_prob": False} | changes)


def gpt_oss(**changes):
    """A gpt-oss config.json: a window in every other layer, yarn, biases, rows of whole blocks of MXFP4."""
    return llama(**{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
                    "mlp_bias": None, "hidden_size": 64, "intermediate_size": 32, "head_dim": 16,
                    "num_hidden_layers": 3, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 0.8,
                    "sliding_window": 7, "rope_theta": 150.0, "max_position_embeddings": 512,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                     "truncate": False, "original_max_position_embeddings": 16}} | changes)


# As VARIANTS of model_variants.py.
EXPERT_VARIANTS = {
    "qwen3moe": ("a mixture of experts, whose shares add up to 1", qwen3moe(), "BF16", [21],
                 {"norm_topk_prob": False}),
    "qwen3moe-shares": ("shares of experts that do not add up to 1; biases of attention",
                        qwen3moe(norm_topk_prob=False, attention_bias=True), "F32", [19], {"norm_topk_prob": True}),
    "mixtral": ("experts under Mixtral's names", mixtral(), "BF16 sharded", [20], {"num_experts_per_tok": 1}),
    "olmoe": ("norms of q and k over all heads", olmoe(), "BF16", [22], {"norm_topk_prob": True}),
    "gpt-oss": ("sinks, windows in every other layer, experts in one tensor with biases and a bounded activation",
                gpt_oss(), "BF16", [24], {"swiglu_limit": 7.0}),
    "gpt-oss-mxfp4": ("experts in MXFP4, as blocks and scales",
                      gpt_oss(swiglu_limit=7.0, quantization_config={"quant_method": "mxfp4"}), "BF16", [20],
                      {"num_experts_per_tok": 1, "quantization_config": None}),
}

# As GGUF_VARIANTS of model_gguf.py.
EXPERT_GGUF_VARIANTS = {
    "qwen3moe": ("architecture qwen3moe", "qwen3moe", "BF16", 0),
    "mixtral": ("experts under the architecture llama", "mixtral", "BF16", 0),
    "olmoe": ("architecture olmoe", "olmoe", "BF16", 0),
    "gpt-oss-mxfp4": ("architecture gpt-oss, experts in MXFP4", "gpt-oss-mxfp4", "BF16", 0),
}

MXFP4 = gguf.GGMLQuantizationType.MXFP4

# What transformers' modules call the experts' gate, up and down projections, in checkpoints.
NAMES = {"mixtral": ("w1", "w3", "w2")}


def is_mixture(config):
    return "num_experts_per_tok" in config


def checkpoint_weights(config, weights):
    """The tensors of a checkpoint, which has one for each expert, from those of the modules."""
    if not is_mixture(config) or config["model_type"] == "gpt_oss":
        return rounded_weights(config, weights)
    gate, up, down = NAMES.get(config["model_type"], ("gate_proj", "up_proj", "down_proj"))
    block = "block_sparse_moe" if config["model_type"] == "mixtral" else "mlp"
    out = {}
    for name, tensor in weights.items():
        layer = name.split("mlp.")[0]
        if name.endswith("mlp.experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                half = len(both) // 2
                out[f"{layer}{block}.experts.{e}.{gate}.weight"] = both[:half].contiguous()
                out[f"{layer}{block}.experts.{e}.{up}.weight"] = both[half:].contiguous()
        elif name.endswith("mlp.experts.down_proj"):
            for e, matrix in enumerate(tensor):
                out[f"{layer}{block}.experts.{e}.{down}.weight"] = matrix.contiguous()
        else:
            out[name.replace("mlp.gate.", f"{block}.gate.")] = tensor
    return out


def in_mxfp4(config):
    return "quantization_config" in config


def rounded_weights(config, weights):
    """The weights that experts have after they were rounded to MXFP4, where the config says so. The tensors of all
    experts are (experts, inputs, outputs)."""
    if not in_mxfp4(config):
        return weights
    out = dict(weights)
    for name, tensor in weights.items():
        if name.endswith("_proj") and ".experts." in name:
            rows = np.ascontiguousarray(tensor.float().numpy().swapaxes(1, 2))
            blocks = gguf.quants.quantize(rows, MXFP4)
            values = gguf.quants.dequantize(blocks, MXFP4).swapaxes(1, 2)
            out[name] = torch.from_numpy(np.ascontiguousarray(values)).to(tensor.dtype)
    return out


def stored_weights(config, weights):
    """The same tensors as a directory has them: in MXFP4 16 bytes of two neighbouring values each, and a scale."""
    if not in_mxfp4(config):
        return weights
    out = {}
    for name, tensor in weights.items():
        if not (name.endswith("_proj") and ".experts." in name):
            out[name] = tensor
            continue
        rows = np.ascontiguousarray(tensor.float().numpy().swapaxes(1, 2))
        blocks = gguf.quants.quantize(rows, MXFP4)
        blocks = blocks.reshape(*rows.shape[:2], -1, 17)
        halves = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        out[name + "_blocks"] = torch.from_numpy(halves[..., 0::2] | halves[..., 1::2] << 4)
        out[name + "_scales"] = torch.from_numpy(np.ascontiguousarray(blocks[..., 0]))
    return out


def gpt_oss_gguf(tensors):
    """gpt-oss' tensors of a GGUF file: rows of gate and up apart, other names of sinks, router and norm."""
    out = {}
    for name, values in tensors.items():
        name = name.replace("mlp.router", "ffn_gate_inp").replace("ffn_norm", "post_attention_norm")
        if name.endswith("self_attn.sinks"):
            name = name.replace("self_attn.sinks", "attn_sinks.weight")
        layer, _, stem = name.partition(".mlp.experts.")
        suffix = "bias" if stem.endswith("_bias") else "weight"
        if stem and suffix == "weight":
            values = np.ascontiguousarray(values.swapaxes(1, 2))
        if stem.startswith("gate_up_proj"):
            out[f"{layer}.ffn_gate_exps.{suffix}"] = np.ascontiguousarray(values[:, 0::2])
            out[f"{layer}.ffn_up_exps.{suffix}"] = np.ascontiguousarray(values[:, 1::2])
        elif stem:
            out[f"{layer}.ffn_down_exps.{suffix}"] = values
        else:
            out[name] = values
    return out


def gguf_experts(tensors):
    """The experts' tensors of a GGUF file, of three dimensions, from those of a checkpoint under their own names."""
    stems = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
    out, stacks = {}, {}
    for name, values in tensors.items():
        head, _, tail = name.partition(".experts.")
        if not tail:
            out[name.replace("mlp.gate", "ffn_gate_inp").replace("block_sparse_moe.gate", "ffn_gate_inp")] = values
            continue
        number, stem, _ = tail.split(".")
        layer = head.rsplit(".", 1)[0]
        stacks.setdefault(f"{layer}.ffn_{stems[stem]}_exps.weight", {})[int(number)] = values
    for name, experts in stacks.items():
        out[name] = np.stack([experts[e] for e in range(len(experts))])
    return out


def add_gguf_keys(writer, config):
    """The keys of a mixture."""
    if not is_mixture(config):
        return
    writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
