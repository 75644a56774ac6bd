#!/usr/bin/env python3
"""LoRA adapters: logits beside those of models whose weights have the adapters added in float32, from
PEFT's directories and from GGUF files, as the model runs and merged, and what is refused. Models and
adapters are small and random. Ends with "N passed, N failed"."""
import contextlib
import shutil
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

IDS = "1,2,3,4,90,17,6,88,23,5,61,7,7,7,100,64,2,31,99"


def run(*arguments):
    return subprocess.run([QUIPU, *map(str, arguments)], capture_output=True, text=True, timeout=120)


class Folder:
    """A folder with the model "m", and what tests put beside it."""

    def __init__(self, path):
        self.path = Path(path)
        self.tensors = files.random_model()
        self.model = files.write_model(self.path / "m", self.tensors)
        self.pairs = files.random_adapter()
        self.peft = files.write_peft(self.path / "adapter", self.pairs)

    def logits(self, model, *options, ids=IDS):
        out = self.path / "logits"
        done = run("logits", "-m", model, "--ids", ids, "-o", out, "-t", 2, "--device", "cpu", "--kv-type", "F32", *options)
        assert done.returncode == 0, done.stderr
        return np.fromfile(out, np.float32).reshape(-1, files.VOCAB)

    def merged_logits(self, pairs_and_scales, name="merged", **how):
        tensors = self.tensors
        for pairs, scaling in pairs_and_scales:
            tensors = files.merged(tensors, pairs, scaling)
        folder = self.path / name
        if not folder.exists():
            files.write_model(folder, tensors)
        return self.logits(folder, **how)


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="quipu-lora-") as path:
        yield Folder(path)


def close(a, b, most=1e-4):
    worst = float(np.abs(a - b).max())
    assert worst <= most, f"logits differ by {worst}"


def refused(done, *words):
    assert done.returncode != 0, f"not refused: {done.stdout}"
    for word in words:
        assert word in done.stderr, f"{word!r} is not in {done.stderr!r}"


@test
def peft_is_as_merged(f):
    expected = f.merged_logits([(f.pairs, 2.0)])
    assert np.abs(expected - f.logits(f.model)).max() > 0.1
    close(f.logits(f.model, "--lora", f.peft), expected)
    close(f.logits(f.model, "--lora", f.peft, "--lora-merge"), expected, 1e-5)
    close(f.logits(f.model, "--lora", f.peft, "--exec", "reference"), expected)
    close(f.logits(f.model, "--lora", f.peft, "--fuse"), expected)


@test
def scales_are_factors(f):
    close(f.logits(f.model, "--lora", f"{f.peft}:-0.25"), f.merged_logits([(f.pairs, -0.5)], "quarter"))
    close(f.logits(f.model, "--lora", f"{f.peft}:1"), f.logits(f.model, "--lora", f.peft), 0)


@test
def several_add_up(f):
    second = files.random_adapter(7, seed=2, targets=("q_proj", "v_proj", "down_proj"))
    files.write_peft(f.path / "second", second, alpha=3.5)
    close(f.logits(f.model, "--lora", f"{f.peft}:0.5", "--lora", f.path / "second"),
          f.merged_logits([(f.pairs, 1.0), (second, 0.5)], "both"))
    close(f.logits(f.model, "--lora", f.path / "second"), f.merged_logits([(second, 0.5)], "one"))


@test
def gguf_and_safetensors_meet(f):
    expected = f.merged_logits([(f.pairs, 2.0)])
    gguf = files.write_gguf(f.path / "adapter.gguf", f.pairs)
    model = f.path / "m.gguf"
    assert run("convert", "-m", f.model, "-o", model).returncode == 0
    for m in (f.model, model):
        for adapter in (f.peft, gguf):
            close(f.logits(m, "--lora", adapter), expected)
            close(f.logits(m, "--lora", adapter, "--lora-merge"), expected, 1e-5)
    without = files.write_gguf(f.path / "without.gguf", f.pairs, alpha=None)
    close(f.logits(model, "--lora", without), f.merged_logits([(f.pairs, 1.0)], "ones"))


@test
def types_are_read(f):
    for name, kind in ("BF16", files.bf16), ("F16", lambda v: v.astype(np.float16)):
        files.write_peft(f.path / name, f.pairs, kind=kind)
        close(f.logits(f.model, "--lora", f.path / name), f.merged_logits([(f.pairs, 2.0)]), 0.3)
    double = files.write_peft(f.path / "F64", f.pairs, kind=lambda v: ("F64", v.astype(np.float64).tobytes(), v.shape))
    close(f.logits(f.model, "--lora", double), f.merged_logits([(f.pairs, 2.0)]))
    half = {n: (a.astype(np.float16).astype(np.float32), b.astype(np.float16).astype(np.float32))
            for n, (a, b) in f.pairs.items()}
    close(f.logits(f.model, "--lora", f.path / "F16"), f.merged_logits([(half, 2.0)], "half"))
    gguf = files.write_gguf(f.path / "half.gguf", f.pairs, half=True)
    close(f.logits(f.model, "--lora", gguf), f.merged_logits([(half, 2.0)], "half"))


@test
def configs_are_followed(f):
    first = {n: p for n, p in f.pairs.items() if n.startswith("model.layers.0")}
    small = files.random_adapter(2, seed=3, targets=("q_proj",))
    patterns = files.write_peft(f.path / "patterns", {**f.pairs, **small}, alpha=8, config={
        "r": 4, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 1, "up_proj": 2}})
    scaled = {n: (a, b * {"up_proj": 0.5}.get(n.split(".")[-1], 2.0)) for n, (a, b) in f.pairs.items()}
    for n, (a, b) in small.items():
        scaled[n] = (a, b * (0.5 if ".1." in n else 4.0))
    close(f.logits(f.model, "--lora", patterns), f.merged_logits([(scaled, 1.0)], "patterned"))
    root = files.write_peft(f.path / "root", f.pairs, alpha=3, config={"use_rslora": True})
    close(f.logits(f.model, "--lora", root), f.merged_logits([(f.pairs, 1.5)], "rooted"))
    files.write_peft(f.path / "layer-0", first)
    close(f.logits(f.model, "--lora", f.path / "layer-0"), f.merged_logits([(first, 2.0)], "first"))


@test
def families_have_their_order(f):
    for family in "qwen2", "olmo2", "phi3":
        tensors, pairs = files.random_model(family, seed=5), files.random_adapter(5, 5, family=family)
        model = files.write_model(f.path / family, tensors, family)
        whole = files.write_model(f.path / (family + "-merged"), files.merged(tensors, pairs, 0.8), family)
        adapter = files.write_peft(f.path / (family + "-adapter"), pairs, alpha=4)
        close(f.logits(model, "--lora", adapter), f.logits(whole))
        gguf = f.path / (family + ".gguf")
        assert run("convert", "-m", model, "-o", gguf).returncode == 0
        close(f.logits(gguf, "--lora", adapter), f.logits(whole))


@test
def quantised_models_have_adapters(f):
    gguf, both = f.path / "q8.gguf", f.path / "both.gguf"
    assert run("convert", "-m", f.model, "-o", gguf, "--type", "Q8_0").returncode == 0
    close(f.logits(gguf, "--lora", f.peft), f.merged_logits([(f.pairs, 2.0)]), 0.3)
    refused(run("logits", "-m", gguf, "--ids", IDS, "--lora", f.peft, "--lora-merge"), "Q8_0", "as the model runs")
    assert run("convert", "-m", f.model, "-o", both, "--lora", f.peft).returncode == 0
    close(f.logits(both), f.merged_logits([(f.pairs, 2.0)]), 1e-5)
    stored = f.path / "stored.gguf"
    assert run("convert", "-m", f.model, "-o", stored).returncode == 0
    assert run("convert", "-m", stored, "-o", both, "--lora", f.peft).returncode == 0
    close(f.logits(both), f.merged_logits([(f.pairs, 2.0)]), 1e-5)


@test
def bits_do_not_depend_on_other_adapters(f):
    other = files.write_peft(f.path / "other", files.random_adapter(19, seed=9))
    alone = f.logits(f.model, "--lora", f.peft)
    assert (f.logits(f.model, "--lora", f.peft, "--lora", f"{other}:1e-30") == alone).all()
    for threads in 1, 3:
        out = f.path / "out"
        assert run("logits", "-m", f.model, "--ids", IDS, "-o", out, "-t", threads, "--chunk", 5, "--kv-type", "F32", "--lora",
                   f.peft).returncode == 0
        assert (np.fromfile(out, np.float32).reshape(alone.shape) == alone).all()


@test
def the_plan_shows_them(f):
    done = run("plan", "-m", f.model, "--lora", f.peft)
    assert done.returncode == 0 and "lora" in done.stdout and "adapters" in done.stdout, done.stdout + done.stderr
    done = run("diff", "-m", f.model, "--lora", f.peft, "--tokens", 9, "-t", 2)
    assert done.returncode == 0, done.stdout + done.stderr


def change(f, name, edit, **how):
    """A PEFT directory whose pairs `edit` has changed."""
    pairs = {n: [a.copy(), b.copy()] for n, (a, b) in f.pairs.items()}
    edit(pairs)
    return files.write_peft(f.path / name, pairs, **how)


@test
def what_does_not_fit_is_refused(f):
    name = "model.layers.1.self_attn.k_proj"

    def attempt(adapter, *words, options=()):
        refused(run("run", "-m", f.model, "-p", "1", "-n", 1, "--lora", adapter, *options), *words)

    def cut_rank(pairs):
        pairs[name][1] = pairs[name][1][:, :3].copy()

    def other_size(pairs):
        pairs[name][0] = np.zeros((4, files.HIDDEN + 2), np.float32)

    def put(value, which=0):
        def edit(pairs):
            pairs[name][which][1, 1] = value
        return edit

    def other_layer(pairs):
        pairs["model.layers.7.self_attn.k_proj"] = pairs.pop(name)

    attempt(change(f, "cut", cut_rank), name, "[4, 64]", "[32, 3]", "one rank")
    attempt(change(f, "size", other_size), name, "another model", "[4, 66]")
    attempt(change(f, "nan", put(np.nan)), "attn_k", "layer 1", "finite", "nan")
    attempt(change(f, "inf", put(np.inf, 1)), "attn_k", "finite", "inf")
    whole = files.write_peft(f.path / "whole", f.pairs, kind=lambda v: ("I32", v.astype(np.int32).tobytes(), v.shape))
    attempt(whole, "attn_q", "must be floating-point numbers", "I32")
    attempt(change(f, "layer", other_layer), "model.layers.7", "another model")
    attempt(change(f, "zero", lambda p: None, alpha=0), "lora_alpha", "found 0")
    attempt(change(f, "alpha", lambda p: None, alpha=float("nan")), "adapter_config.json")
    attempt(change(f, "r", lambda p: None, config={"r": 3}), "must have rank 3", "found 4")
    attempt(files.write_peft(f.path / "none", {}), "no tensors")
    head = {"base_model.model.lm_head.lora_A.weight": np.zeros((4, 64), np.float32)}
    attempt(change(f, "head", lambda p: None, extra=head), "lm_head.lora_A")
    half = {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": np.zeros((4, 64), np.float32)}
    attempt(files.write_peft(f.path / "lonely", {n: p for n, p in f.pairs.items() if "up_proj" not in n}, extra=half),
            "up_proj.lora_B.weight\" is missing")
    for key, value in (("use_dora", True), ("bias", "all"), ("fan_in_fan_out", True), ("modules_to_save", ["lm_head"]),
                       ("peft_type", "IA3"), ("rank_pattern", {"^q.*": 4})):
        attempt(change(f, key, lambda p: None, config={key: value}), key)
    attempt(f"{f.peft}:0", "other than 0")
    attempt(f"{f.peft}:nan", "finite")
    attempt(f"{f.peft}:two", "found 'two'")
    attempt(f.path / "nowhere", "nowhere")
    attempt(f.model, "adapter_config.json")
    attempt(f.peft / "adapter_model.safetensors", "pass the directory")
    attempt(files.write_gguf(f.path / "arch.gguf", f.pairs, architecture="qwen2"), "general.architecture", "qwen2")
    attempt(files.write_gguf(f.path / "type.gguf", f.pairs, keys={"general.type": "model"}), "general.type")
    attempt(files.write_gguf(f.path / "nil.gguf", f.pairs, alpha=0.0), "adapter.lora.alpha")
    attempt(f.peft, "ranks", options=("--ranks", "2"))
    attempt(f.peft, "paged", options=("--plan", "flashinfer"))
    attempt(f.peft, "BF16", options=("--act-type", "BF16"))
    shutil.rmtree(f.path / "cut")
    (f.path / "cut").mkdir()
    (f.path / "cut" / "adapter_config.json").write_text("{")
    attempt(f.path / "cut", "adapter_config.json")


if __name__ == "__main__":
    sys.exit(run_tests(folder))
