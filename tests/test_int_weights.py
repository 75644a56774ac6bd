#!/usr/bin/env python3
"""Directories in GPTQ, AWQ and compressed-tensors' whole numbers of 4 and 8 bits: their logits are those
of the numbers that they stand for, to the bit, and what is missing or does not fit is refused. Ends with
"N passed, N failed"."""
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is missing")
    sys.exit(77)

import lora_files as files
from server_process import QUIPU, run_tests, test

IDS = "1,2,3,4,90,17,6,88,23,5,61,7"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def run(*arguments):
    return subprocess.run([QUIPU, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def logits(model, *options):
    out = model / "logits"
    done = run("logits", "-m", model, "--ids", IDS, "-o", out, "-t", 2, "--device", "cpu", "--kv-type", "F32",
               "--exec", "reference", *options)
    assert done.returncode == 0, done.stderr
    return np.fromfile(out, np.float32).reshape(-1, files.VOCAB)


def pack(numbers, bits, axis, order=None):
    """Numbers packed along an axis into words, the first lowest."""
    n = 32 // bits
    moved = np.moveaxis(numbers.astype(np.uint32), axis, -1)
    parts = moved.reshape(*moved.shape[:-1], -1, n)
    words = np.zeros(parts.shape[:-1], np.uint32)
    for i in range(n):
        words |= parts[..., order[i] if order else i] << np.uint32(bits * i)
    words = np.ascontiguousarray(np.moveaxis(words, -1, axis))
    return "I32", words.tobytes(), words.shape


def integers(values, kind="I32"):
    return kind, values.astype(np.int32 if kind == "I32" else np.int64).tobytes(), values.shape


class Quantised:
    """A model whose linear layers are whole numbers, and the numbers that they stand for."""

    def __init__(self, method, bits=4, group=32, symmetric=True, order=False, family="llama", seed=3, scale=np.float16):
        draw = np.random.default_rng(seed)
        self.method, self.bits, self.group, self.family = method, bits, group, family
        self.symmetric, self.tensors, self.plain = symmetric, {}, {}
        for name, value in files.random_model(family, seed).items():
            module = name[len("model.layers.0."):-len(".weight")] if name.startswith("model.layers.") else ""
            if module in files.linears(family):
                self.add(name[:-len(".weight")], value.shape, draw, order, scale)
            else:
                self.tensors[name] = self.plain[name] = value

    def add(self, name, shape, draw, order, scale):
        rows, columns = shape
        group = columns if self.group == -1 else self.group
        groups, middle = -(-columns // group), 1 << self.bits - 1
        q = draw.integers(0, 1 << self.bits, shape)
        zeros = np.full((rows, groups), middle) if self.symmetric else draw.integers(1, 1 << self.bits, (rows, groups))
        scales = draw.uniform(0.002, 0.03, (rows, groups)).astype(np.float32)
        scales = scales.astype(scale) if scale else files.bf16(scales)
        exact = scales.astype(np.float32) if scale else (
            np.frombuffer(scales[1], np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(rows, groups)
        index = np.arange(columns) // group
        if order:
            draw.shuffle(index)
        self.plain[name + ".weight"] = exact[:, index] * (q - zeros[:, index]).astype(np.float32)
        put = {}
        if self.method == "compressed":
            put = {"weight_packed": pack(q, self.bits, 1), "weight_scale": scales,
                   "weight_shape": integers(np.array(shape), "I64")}
            if not self.symmetric:
                put["weight_zero_point"] = pack(zeros, self.bits, 0)
            if order:
                put["weight_g_idx"] = integers(index)
        elif self.method == "awq":
            put = {"qweight": pack(q.T, 4, 1, AWQ_ORDER), "qzeros": pack(zeros.T, 4, 1, AWQ_ORDER),
                   "scales": np.ascontiguousarray(scales.T)}
        else:
            less = zeros - (self.method == "gptq")
            put = {"qweight": pack(q.T, self.bits, 0), "qzeros": pack(less.T, self.bits, 1),
                   "scales": np.ascontiguousarray(scales.T), "g_idx": integers(index), "bias": np.zeros(rows, np.float16)}
            if self.family == "qwen2" and name.split(".")[-1] in ("q_proj", "k_proj", "v_proj"):
                del put["bias"]
        self.tensors |= {f"{name}.{part}": value for part, value in put.items()}

    def config(self):
        if self.method == "compressed":
            weights = {"num_bits": self.bits, "type": "int", "symmetric": self.symmetric,
                       "strategy": "channel" if self.group == -1 else "group"}
            if self.group != -1:
                weights["group_size"] = self.group
            return {"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}}, "ignore": ["lm_head"]}
        if self.method == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm"}
        return {"quant_method": "gptq", "bits": self.bits, "group_size": self.group, "desc_act": True, "sym": self.symmetric,
                "checkpoint_format": self.method}

    def write(self, folder, tensors=None, config=None):
        files.write_model(folder, tensors or self.tensors, self.family)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config or self.config()}))
        return folder


def check(folder, name, kind, **how):
    """Logits to the bit, and the type in which the matrices are kept."""
    model = Quantised(**how)
    written = model.write(folder / name)
    plain = files.write_model(folder / (name + "-plain"), model.plain, model.family)
    if kind == "F32":
        assert (logits(written) == logits(plain)).all(), name
    else:  # the same numbers: the reference decodes them exactly
        assert (logits(written) == logits(plain)).all(), name
    shown = run("info", "-m", written).stdout
    assert f"\n{kind} " in shown, (name, kind, shown)
    return written


@test
def gptq_is_exact(folder):
    check(folder, "gptq4", "Q4_0", method="gptq")
    check(folder, "gptq8", "Q8_0", method="gptq", bits=8)
    check(folder, "gptq-v2", "Q4_0", method="gptq_v2", group=-1)
    check(folder, "gptq-zeros", "F32", method="gptq", symmetric=False)
    check(folder, "gptq-order", "F32", method="gptq", order=True)
    check(folder, "gptq8-order", "F32", method="gptq", bits=8, symmetric=False, order=True)
    check(folder, "gptq-16", "F32", method="gptq", group=16)
    check(folder, "gptq-qwen", "Q4_0", method="gptq", family="qwen2")
    check(folder, "gptq-phi", "Q4_0", method="gptq", family="phi3")


@test
def awq_is_exact(folder):
    check(folder, "awq", "F32", method="awq", symmetric=False)
    check(folder, "awq-middle", "Q4_0", method="awq")


@test
def compressed_tensors_are_exact(folder):
    check(folder, "ct4", "Q4_0", method="compressed", scale=None)
    check(folder, "ct8", "Q8_0", method="compressed", bits=8, group=-1)
    check(folder, "ct-zeros", "F32", method="compressed", symmetric=False)
    check(folder, "ct-order", "F32", method="compressed", order=True, scale=None)
    check(folder, "ct-f32", "F32", method="compressed", scale=np.float32)


@test
def they_convert(folder):
    model = Quantised("gptq")
    written = model.write(folder / "to-convert")
    assert run("convert", "-m", written, "-o", folder / "converted.gguf").returncode == 0
    out = folder / "converted.logits"
    done = run("logits", "-m", folder / "converted.gguf", "--ids", IDS, "-o", out, "--kv-type", "F32", "--exec", "reference")
    assert done.returncode == 0, done.stderr
    worst = np.abs(np.fromfile(out, np.float32).reshape(-1, files.VOCAB) - logits(written)).max()
    assert worst < 1e-5, worst  # rows of q and k are in another order
    adapter = files.write_peft(folder / "adapter", files.random_adapter())
    assert np.abs(logits(written, "--lora", adapter) - logits(written)).max() > 0.1


@test
def what_is_missing_is_refused(folder):
    model = Quantised("gptq")
    name = "model.layers.1.mlp.up_proj"

    def attempt(case, *words, change=None, config=None):
        tensors = dict(model.tensors)
        if change:
            change(tensors)
        done = run("run", "-m", model.write(folder / case, tensors, config), "-p", "1", "-n", 1)
        assert done.returncode != 0, case
        for word in words:
            assert word in done.stderr, (case, word, done.stderr)

    for part in "qzeros", "scales":
        attempt("no-" + part, name, part, "missing", change=lambda t, p=part: t.pop(f"{name}.{p}"))
    attempt("no-words", name, "missing", change=lambda t: t.pop(f"{name}.qweight"))
    half = model.tensors[name + ".scales"][:1]
    attempt("half", name, "[2, 96]", "[1, 96]", change=lambda t: t.update({name + ".scales": np.ascontiguousarray(half)}))
    zeros = model.tensors[name + ".qzeros"]
    attempt("half-zeros", "qzeros", "[2, 12]", change=lambda t: t.update(
        {name + ".qzeros": ("I32", zeros[1][:len(zeros[1]) // 2], (1, 12))}))
    index = np.arange(64) // 32
    index[7] = 2
    attempt("group", "input 7 is of group 2", change=lambda t: t.update({name + ".g_idx": integers(index)}))
    infinite = model.tensors[name + ".scales"].copy()
    infinite[1, 5] = np.inf
    attempt("scale", "row 5, group 1", "finite", change=lambda t: t.update({name + ".scales": infinite}))
    attempt("bias", "mlp.up_proj.bias", change=lambda t: t.update({name + ".bias": np.ones(96, np.float16)}))
    config = model.config()
    for case, changed, word in (("three", {"bits": 3}, "3 bits"), ("format", {"checkpoint_format": "marlin"}, "marlin"),
                                ("method", {"quant_method": "aqlm"}, "aqlm"), ("group-size", {"group_size": 16}, "[4, ")):
        attempt(case, word, config=config | changed)
    attempt("gemv", "gemv", config={"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"})
    attempt("awq-of-gptq", "by the", config={"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="quipu-int-") as path:
        yield Path(path)


if __name__ == "__main__":
    sys.exit(run_tests(folder))
