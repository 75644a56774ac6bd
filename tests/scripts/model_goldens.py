#!/usr/bin/env python3
"""Writes tests/golden/models: tiny random models of every family variant, and their logits.

Each Hugging Face directory is written first and then opened by transformers, so that the
reference reads the very files that the tests read. The logits are computed in float64 (transformers
rounds its norms and rotations to float32 whatever the model's type is, so both are replaced here)
and compared with the unmodified float32 model before they are stored as float32.

A case of manifest.json is one prompt through one model: logits file = float32 little-endian
[len(ids)][vocab_size], row t = logits after ids[0..t], from one forward pass of the whole prompt.
A reader passes when |got - want| <= 1e-4 * max|want of that row|. A case with "text" is of a model
with a tokenizer: ids are the text's, greedy the tokens that follow at temperature 0.

Every variant must matter: a model whose special feature (scaling, bias, ...) can be left out
without moving the logits by at least 100 tolerances is rejected here. GGUF files hold the weights
of one of the directories, or blocks whose decoded values are the reference's weights.

    python tests/scripts/model_goldens.py [--check-llama-cpp]

Needs numpy, torch, transformers, tokenizers, safetensors, gguf, and llama-cpp-python for the check.
"""

import argparse
import contextlib
import copy
import json
import pathlib
import shutil
import tempfile

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.llama import modeling_llama
from transformers.models.ministral import modeling_ministral
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "models"
TOLERANCE = 1e-4
STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# ------------------------------------------------------------------------------ the variants

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


LLAMA_NAMES = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

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
}

# ------------------------------------------------------------------------------ weights


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


def greedy_steps(path, ids, count):
    """`count` greedy tokens after ids, and the smallest gap to the second choice among them."""
    ids, gap = list(ids), np.inf
    for _ in range(count):
        row = np.sort(logits_of(path, ids, torch.float32)[-1:], axis=1)[0]
        gap = min(gap, float(row[-1] - row[-2]))
        ids.append(int(logits_of(path, ids, torch.float32)[-1].argmax()))
    return ids[-count:], gap

# ------------------------------------------------------------------------------ logits


@contextlib.contextmanager
def float64_throughout():
    """Replaces what transformers computes in float32 inside a float64 model: norms, cos and sin."""
    classes = [(modeling_llama.LlamaRMSNorm, modeling_llama.LlamaRotaryEmbedding),
               (modeling_mistral.MistralRMSNorm, modeling_mistral.MistralRotaryEmbedding),
               (modeling_qwen2.Qwen2RMSNorm, modeling_qwen2.Qwen2RotaryEmbedding),
               (modeling_qwen3.Qwen3RMSNorm, modeling_qwen3.Qwen3RotaryEmbedding),
               (modeling_ministral.MinistralRMSNorm, modeling_ministral.MinistralRotaryEmbedding),
               (modeling_smollm3.SmolLM3RMSNorm, modeling_smollm3.SmolLM3RotaryEmbedding)]
    saved = [(norm.forward, rotary.forward) for norm, rotary in classes]

    def norm_forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.variance_epsilon)

    @torch.no_grad()
    @modeling_llama.dynamic_rope_update
    def rotary_forward(self, x, position_ids):
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    for norm, rotary in classes:
        norm.forward, rotary.forward = norm_forward, rotary_forward
    try:
        yield
    finally:
        for (norm, rotary), (norm_before, rotary_before) in zip(classes, saved):
            norm.forward, rotary.forward = norm_before, rotary_before


def logits_of(path, ids, dtype):
    """Logits [len(ids)][vocab_size] of the model in directory `path`, computed in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa").to(dtype).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def difference(got, want):
    """The largest error of any row, relative to the row's largest logit."""
    return float((np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)).max())


def reference_logits(path, ids):
    with float64_throughout():
        exact = logits_of(path, ids, torch.float64)
    assert exact.dtype == np.float64
    error = difference(logits_of(path, ids, torch.float32), exact)
    assert error < TOLERANCE / 10, f"{path}: transformers in float32 is off by {error:.1e}"
    return exact, error


def prompt(vocab, length, seed):
    """BOS, then ids over the whole vocabulary, its last id among them, with a repeated pair."""
    ids = [1] + np.random.default_rng(seed).integers(3, vocab, length - 1).tolist()
    ids[length // 2] = vocab - 1
    ids[-2:] = ids[1:3]
    return [int(i) for i in ids]


def sensitivity(config, weights, changes, ids, exact):
    """How far the logits move when the variant's special feature is left out."""
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "plain"
        plain = {key: value for key, value in (config | changes).items() if value is not None}
        kept = weights
        if "attention_bias" in changes or "mlp_bias" in changes:
            part = "self_attn" if "attention_bias" in changes else "mlp."
            kept = {k: v for k, v in weights.items() if not (k.endswith(".bias") and part in k)}
        write_directory(path, plain, kept)
        return difference(logits_of(path, ids, torch.float32), exact)

# ------------------------------------------------------------------------------ GGUF


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
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "model.layers": "blk",
}


def gguf_name(name):
    for old, new in GGUF_NAMES.items():
        name = name.replace(old, new)
    return name


def gguf_tensors(config, weights):
    """Llama weights under GGUF's names as numpy float32, q and k in interleaved order but for the
    families whose GGUF files keep the order of safetensors."""
    _, _, heads, kv_heads, _, _, _ = sizes(config)
    pairs = config["model_type"] not in ("qwen2", "qwen3")
    tensors = {}
    for name, tensor in weights.items():
        values = tensor.float().numpy()
        if pairs and "q_proj" in name:
            values = permute(values, heads)
        if pairs and "k_proj" in name:
            values = permute(values, kv_heads)
        tensors[gguf_name(name)] = np.ascontiguousarray(values)
    return tensors


def write_gguf(path, arch, config, tensors, types, split=0, add_tokenizer=None):
    """`tensors` (NAME: float32 array, or bytes already in blocks) of GGUF type `types(NAME)`."""
    hidden, intermediate, heads, kv_heads, head_dim, layers, vocab = sizes(config)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    writer.add_name(path.stem)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    if config.get("sliding_window") and "layer_types" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention"
                                           for kind in config["layer_types"]])
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_rope_freq_base(float(config.get("rope_theta") or scaling.get("rope_theta", 10000)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(config))
    else:
        assert kind == "default", f"GGUF has no {kind} scaling"
    if add_tokenizer:
        add_tokenizer(writer)
    else:
        writer.add_tokenizer_model("none")
    for name, values in tensors.items():
        if values.dtype == np.uint8:
            writer.add_tensor(name, values, raw_dtype=types(name))
        elif values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            blocks = gguf.quants.quantize(values, types(name))
            writer.add_tensor(name, blocks, raw_dtype=types(name))
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


def block_model(name, seed, exact_of):
    """Writes a GGUF of quantised blocks and returns (ids, logits, error) of its decoded weights."""
    _, config, kinds = BLOCKS[name]
    _, _, heads, kv_heads, _, _, vocab = sizes(config)
    random = np.random.default_rng(seed)
    weights = llama_weights(config, seed, torch.float32)
    tensors, decoded, kind_of = {}, {}, {}
    for llama_name, tensor in weights.items():
        file_name = gguf_name(llama_name)
        role = next((role for role in kinds if f"{role}." in file_name), None)
        if role is None:
            tensors[file_name], decoded[llama_name] = tensor.numpy(), tensor
            continue
        kind = gguf.GGMLQuantizationType[kinds[role]]
        if kind.name.endswith("_K"):
            blocks = random_blocks(random, kind, tensor.shape, float(tensor.std()))
        else:
            blocks = gguf.quants.quantize(tensor.numpy(), kind)
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        if role in ("attn_q", "attn_k"):  # the blocks hold the interleaved order: undo it for Llama
            n = heads if role == "attn_q" else kv_heads
            values = values.reshape(n, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        tensors[file_name], kind_of[file_name] = blocks, kind
        decoded[llama_name] = torch.from_numpy(np.ascontiguousarray(values))
    write_gguf(OUT / f"{name}.gguf", "llama", config, tensors, kind_of.get)
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / name
        write_directory(path, config, decoded)
        ids = prompt(vocab, 16, seed)
        return ids, *exact_of(path, ids)

# ------------------------------------------------------------------------------ main


def write_variant(name, seed):
    """Writes one directory; returns its cases and the Llama weights and config that it was made of."""
    description, config, storage, lengths, without = VARIANTS[name]
    weights = llama_weights(config, seed, STORED[storage.split()[0]])
    llama_config, path, scratch = config, OUT / name, None
    if config["model_type"] == "internlm2":
        write_directory(path, config, internlm2_weights(config, weights))
        llama_config = equivalent_llama(config)
        scratch = tempfile.TemporaryDirectory()
        reference = pathlib.Path(scratch.name) / name
        write_directory(reference, llama_config, weights)
    else:
        write_directory(path, config, weights, "sharded" in storage)
        reference = path
    cases = []
    tokenizer = write_tokenizer(path, config) if name == "llama-text" else None
    for number, length in enumerate(lengths):
        ids = prompt(config["vocab_size"], length, seed + number)
        if tokenizer:
            ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
            assert tokenizer.decode(ids) == TEXT
        exact, error = reference_logits(reference, ids)
        moved = None
        if without and number == 0:
            moved = sensitivity(llama_config, weights, without, ids, exact)
            assert moved > 100 * TOLERANCE, f"{name}: the feature moves logits by {moved:.1e} only"
        print(f"{name:26} {len(ids):3} tokens  float32 off by {error:.1e}  "
              f"{'' if moved is None else f'feature moves logits by {moved:.2f}'}")
        file = f"{name}/logits{'' if number == 0 else f'-{length}'}.f32"
        exact.astype("<f4").tofile(OUT / file)
        cases.append({"model": name, "ids": ids, "vocab_size": config["vocab_size"], "logits": file,
                      "description": description})
        if tokenizer:
            chosen, gap = greedy_steps(path, ids, 24)
            assert gap > 0.005, f"{name}: greedy steps are nearly tied ({gap:.1e})"
            cases[-1] |= {"text": TEXT, "greedy": chosen}
    if scratch:
        scratch.cleanup()
    return cases, llama_config, weights


def write_all():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    cases, written = [], {}
    for seed, name in enumerate(VARIANTS):
        new, config, weights = write_variant(name, 1000 + 10 * seed)
        cases += new
        written[name] = (new[0], config, weights)
    for name, (description, source, kind, split) in GGUF_VARIANTS.items():
        case, config, weights = written[source]
        arch = next((a for a in ("internlm2", "qwen2", "qwen3", "smollm3") if source.startswith(a)), "llama")
        write_gguf(OUT / f"{name}.gguf", arch, config, gguf_tensors(config, weights),
                   lambda _: gguf.GGMLQuantizationType[kind], split,
                   add_gguf_tokenizer if source == "llama-text" else None)
        file = f"{name}.gguf" if not split else sorted(OUT.glob(f"{name}-*.gguf"))[0].name
        cases.append(copy.deepcopy(case) | {"model": file, "description": description})
    for seed, name in enumerate(BLOCKS):
        ids, exact, error = block_model(name, 2000 + seed, reference_logits)
        exact.astype("<f4").tofile(OUT / f"{name}.f32")
        print(f"{name:26} {len(ids):3} tokens  float32 off by {error:.1e}")
        description, config, _ = BLOCKS[name]
        cases.append({"model": f"{name}.gguf", "ids": ids, "vocab_size": config["vocab_size"],
                      "logits": f"{name}.f32", "description": description})
    lines = ",\n    ".join(json.dumps(case) for case in cases)
    (OUT / "manifest.json").write_text(
        f'{{\n  "tolerance": {TOLERANCE},\n  "cases": [\n    {lines}\n  ]\n}}\n')
    total = sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file())
    print(f"{len(cases)} cases, {total / 1024:.0f} KiB in {OUT}")


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


def check_llama_cpp():
    """Compares the GGUF files with llama.cpp, which shares no code with what made the logits."""
    import llama_cpp
    for case in json.loads((OUT / "manifest.json").read_text())["cases"]:
        name = case["model"]
        if not name.endswith(".gguf"):
            continue
        parts = sorted(OUT.glob(name.replace("-00001-of-", "-*-of-")))
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / name.replace("-00001-of-00002", "")
            decode_gguf(parts, path)
            model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True,
                                    verbose=False, type_k=llama_cpp.GGML_TYPE_F32,
                                    type_v=llama_cpp.GGML_TYPE_F32)
            model.eval(case["ids"])
            got = model.scores[:len(case["ids"])]
            if "text" in case:
                assert model.tokenize(case["text"].encode(), add_bos=False) == case["ids"], name
        want = np.fromfile(OUT / case["logits"], "<f4").reshape(-1, case["vocab_size"])
        error = difference(got, want)
        print(f"{name:34} llama.cpp differs by {error:.1e}")
        assert error < TOLERANCE, name


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check-llama-cpp", action="store_true",
                        help="check the GGUF files that are there against llama.cpp; write nothing")
    if parser.parse_args().check_llama_cpp:
        check_llama_cpp()
    else:
        write_all()
