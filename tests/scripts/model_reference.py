"""Logits of transformers, in float64 throughout: see model_goldens.py."""

import contextlib
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from transformers.models.llama import modeling_llama
from transformers.models.ministral import modeling_ministral
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.smollm3 import modeling_smollm3

from model_weights import write_directory

TOLERANCE = 1e-4


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


def greedy_steps(path, ids, count):
    """`count` greedy tokens after ids, and the smallest gap to the second choice among them."""
    ids, gap = list(ids), np.inf
    for _ in range(count):
        row = np.sort(logits_of(path, ids, torch.float32)[-1:], axis=1)[0]
        gap = min(gap, float(row[-1] - row[-2]))
        ids.append(int(logits_of(path, ids, torch.float32)[-1].argmax()))
    return ids[-count:], gap
