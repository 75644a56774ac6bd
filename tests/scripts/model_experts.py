"""Mixtures of experts among the small models of model_goldens.py: their config.json, and tensors as checkpoints and
GGUF files have them, from those of transformers' modules."""

import numpy as np

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


# As VARIANTS of model_variants.py.
EXPERT_VARIANTS = {
    "qwen3moe": ("a mixture of experts, whose shares add up to 1", qwen3moe(), "BF16", [21],
                 {"norm_topk_prob": False}),
    "qwen3moe-shares": ("shares of experts that do not add up to 1; biases of attention",
                        qwen3moe(norm_topk_prob=False, attention_bias=True), "F32", [19], {"norm_topk_prob": True}),
    "mixtral": ("experts under Mixtral's names", mixtral(), "BF16 sharded", [20], {"num_experts_per_tok": 1}),
    "olmoe": ("norms of q and k over all heads", olmoe(), "BF16", [22], {"norm_topk_prob": True}),
}

# As GGUF_VARIANTS of model_gguf.py.
EXPERT_GGUF_VARIANTS = {
    "qwen3moe": ("architecture qwen3moe", "qwen3moe", "BF16", 0),
    "mixtral": ("experts under the architecture llama", "mixtral", "BF16", 0),
    "olmoe": ("architecture olmoe", "olmoe", "BF16", 0),
}

# What transformers' modules call the experts' gate, up and down projections, in checkpoints.
NAMES = {"mixtral": ("w1", "w3", "w2")}


def is_mixture(config):
    return "num_experts_per_tok" in config


def checkpoint_weights(config, weights):
    """The tensors of a checkpoint, which has one for each expert, from those of the modules."""
    if not is_mixture(config):
        return weights
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
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
