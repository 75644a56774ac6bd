"""Random weights of the small models, and Hugging Face directories of them: see model_goldens.py."""

import json

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def sizes(config):
    """(hidden, intermediate, heads, KV heads, head_dim, layers, vocabulary) of a config.json."""
    heads = config["num_attention_heads"]
    return (config["hidden_size"], config["intermediate_size"], heads,
            config.get("num_key_value_heads", heads),
            config.get("head_dim", config["hidden_size"] // heads),
            config["num_hidden_layers"], config["vocab_size"])


def llama_weights(config, seed, stored):
    """Random weights under Llama's names, rounded to the stored type (norms and biases too).

    Projections have deviation 1.4 / sqrt(inputs), so that attention scores spread over a few units
    and the softmax, hence every rotation, shows in the logits.
    """
    random = np.random.default_rng(seed)
    hidden, intermediate, heads, kv_heads, head_dim, layers, vocab = sizes(config)
    attention_bias = config.get("attention_bias", config.get("bias", False))
    qkv_bias = attention_bias or config["model_type"] == "qwen2"
    weights = {}

    def put(name, shape, deviation, mean=0.0):
        values = mean + deviation * np.sqrt(3.0) * (2.0 * random.random(shape) - 1.0)
        weights[name] = torch.from_numpy(values).to(stored)

    def linear(name, outputs, inputs, bias):
        put(name + ".weight", (outputs, inputs), 1.4 / np.sqrt(inputs))
        if bias:
            put(name + ".bias", (outputs,), 0.4)

    put("model.embed_tokens.weight", (vocab, hidden), 0.8)
    for i in range(layers):
        layer = f"model.layers.{i}."
        put(layer + "input_layernorm.weight", (hidden,), 0.2, 1.0)
        linear(layer + "self_attn.q_proj", heads * head_dim, hidden, qkv_bias)
        linear(layer + "self_attn.k_proj", kv_heads * head_dim, hidden, qkv_bias)
        linear(layer + "self_attn.v_proj", kv_heads * head_dim, hidden, qkv_bias)
        linear(layer + "self_attn.o_proj", hidden, heads * head_dim, attention_bias)
        if config["model_type"] == "qwen3":
            put(layer + "self_attn.q_norm.weight", (head_dim,), 0.3, 1.2)
            put(layer + "self_attn.k_norm.weight", (head_dim,), 0.3, 1.2)
        put(layer + "post_attention_layernorm.weight", (hidden,), 0.2, 1.0)
        linear(layer + "mlp.gate_proj", intermediate, hidden, config.get("mlp_bias", False))
        linear(layer + "mlp.up_proj", intermediate, hidden, config.get("mlp_bias", False))
        linear(layer + "mlp.down_proj", hidden, intermediate, config.get("mlp_bias", False))
    put("model.norm.weight", (hidden,), 0.2, 1.0)
    if not config["tie_word_embeddings"]:
        linear("lm_head", vocab, hidden, False)
    return weights


LLAMA_LIKE = ("llama", "internlm2", "mistral", "ministral", "qwen2", "qwen3", "smollm3")


def random_weights(config, seed, stored):
    """The same for any other family: every parameter that transformers' model of this config has,
    by its shape. Norms are around 1, those that a family adds 1 to around 0."""
    random = np.random.default_rng(seed)
    known = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **known))
    weights = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        mean, deviation = 0.0, 1.4 / np.sqrt(tensor.shape[-1])
        if "norm" in name and name.endswith(".weight"):
            mean, deviation = 0.0 if config["model_type"].startswith("gemma") else 1.0, 0.2
        elif name.endswith(".bias"):
            deviation = 0.4
        elif "embed_tokens" in name:
            deviation = 0.8 if not config["model_type"].startswith("gemma") else 0.8 / np.sqrt(tensor.shape[-1])
        values = mean + deviation * np.sqrt(3.0) * (2.0 * random.random(tuple(tensor.shape)) - 1.0)
        weights[name] = torch.from_numpy(values).to(stored)
    return weights


INTERNLM2_NAMES = [
    ("model.embed_tokens", "model.tok_embeddings"), ("lm_head", "output"),
    ("self_attn.o_proj", "attention.wo"), ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
]


def internlm2_weights(config, weights):
    """InternLM2's tensors from the equivalent Llama's: wqkv's rows are n_kv_heads groups, each of
    the group's query heads, then its K head, then its V head, head_dim rows apiece."""
    _, _, _, kv_heads, head_dim, _, _ = sizes(config)
    fused = {}
    for name, tensor in weights.items():
        for old, new in INTERNLM2_NAMES:
            name = name.replace(old, new)
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
            grouped = [part.reshape(kv_heads, -1, head_dim, *part.shape[1:]) for part in parts]
            joined = torch.cat(grouped, dim=1)
            fused[name.replace("self_attn.q_proj", "attention.wqkv")] = (
                joined.reshape(-1, *tensor.shape[1:]).contiguous())
        elif "k_proj" not in name and "v_proj" not in name:
            fused[name] = tensor
    return fused


def equivalent_llama(config):
    """The config.json of the Llama that computes what an InternLM2 does."""
    keys = {key: value for key, value in config.items() if key not in ("auto_map", "bias")}
    return keys | {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                   "attention_bias": config["bias"]}


def write_directory(path, config, weights, sharded=False):
    """A Hugging Face directory: config.json, generation_config.json and the weights."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"_from_model_config": True, "bos_token_id": config["bos_token_id"],
                  "eos_token_id": config["eos_token_id"]}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    if not sharded:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    halves = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, path / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    index = {"metadata": {"total_size": total},
             "weight_map": {name: file for file, part in halves.items() for name in part}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

# ------------------------------------------------------------------------------ text

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ the", "Ġ a", "i n", "e r", "o u", "Ġ w", "a n", "r e", "o n", "a t",
          "e n", "an d", "Ġ and", "in g", "Ġ s", "i t", "Ġ c", "Ġ Ġ", "ĠĠ ĠĠ", "o r",
          "e s", "i s", "l l", "Ġ is", "Ġ k", "n o", "no t"]
TEMPLATE = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
TEXT = "The cord is not a knot: 12.\n\tÉté 縄 🪢    end"


def vocabulary():
    """Tokens in the order of their ids: specials, the 256 bytes as GPT-2 writes them, merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in plain]
    letters = [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(shifted))]
    return SPECIAL + letters + [merge.replace(" ", "") for merge in MERGES]


def write_tokenizer(path, config):
    """tokenizer.json in the manner of SmolLM2's, and tokenizer_config.json with the template."""
    tokens = vocabulary()
    assert len(tokens) == config["vocab_size"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        {token: i for i, token in enumerate(tokens)},
        [tuple(merge.split(" ")) for merge in MERGES]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"add_bos_token": False, "bos_token": SPECIAL[1], "chat_template": TEMPLATE,
                "clean_up_tokenization_spaces": False, "eos_token": SPECIAL[2],
                "tokenizer_class": "GPT2Tokenizer", "unk_token": SPECIAL[0]}
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return tokenizer
