"""Logits of transformers, in float64 throughout: see model_goldens.py."""

import contextlib
import pathlib
import tempfile

import numpy as np
import torch
import transformers

from model_weights import write_directory

TOLERANCE = 1e-4


@contextlib.contextmanager
def float64_throughout():
    """Inside a float64 model transformers computes norms, cosines and sines in float32, by
    Tensor.float() and Tensor.to(torch.float32): both give float64 here."""
    plain_float, plain_to = torch.Tensor.float, torch.Tensor.to

    def to(self, *args, **kwargs):
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {key: torch.float64 if arg is torch.float32 else arg for key, arg in kwargs.items()}
        return plain_to(self, *args, **kwargs)

    torch.Tensor.float, torch.Tensor.to = torch.Tensor.double, to
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.to = plain_float, plain_to


def logits_of(path, ids, dtype):
    """Logits [len(ids)][vocab_size] of the model in directory `path`, computed in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").to(dtype).eval()
    with torch.no_grad(), float64_throughout() if dtype == torch.float64 else contextlib.nullcontext():
        return model(torch.tensor([ids])).logits[0].numpy()


def difference(got, want):
    """The largest error of any row, relative to the row's largest logit."""
    return float((np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)).max())


def reference_logits(path, ids):
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
