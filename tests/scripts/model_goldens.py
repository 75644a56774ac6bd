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

    python tests/scripts/model_goldens.py [--only PREFIX...] [--check-llama-cpp]

Needs numpy, torch, transformers, tokenizers, safetensors, gguf, and llama-cpp-python for the check.
"""

import argparse
import copy
import json
import pathlib
import re
import shutil
import tempfile

import gguf
import numpy as np
import torch
import transformers

from model_experts import EXPERT_GGUF_VARIANTS, EXPERT_VARIANTS, checkpoint_weights, in_mxfp4, stored_weights
from model_gguf import (BLOCKS, GGUF_VARIANTS, LATER_GGUF_VARIANTS, add_gguf_tokenizer, decode_gguf, gguf_architecture, gguf_name, gguf_tensors, random_blocks,
                        write_gguf)
from model_reference import TOLERANCE, difference, greedy_steps, prompt, reference_logits, sensitivity
from model_variants import LATER_VARIANTS, VARIANTS
from model_weights import (LLAMA_LIKE, STORED, TEXT, equivalent_llama, internlm2_weights, llama_weights, random_weights,
                           sizes, write_directory, write_tokenizer)

VARIANTS = VARIANTS | EXPERT_VARIANTS | LATER_VARIANTS
GGUF_VARIANTS = GGUF_VARIANTS | EXPERT_GGUF_VARIANTS | LATER_GGUF_VARIANTS
OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "models"


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


def write_variant(name, seed):
    """Writes one directory; returns its cases and the Llama weights and config that it was made of."""
    description, config, storage, lengths, without = VARIANTS[name]
    make = llama_weights if config["model_type"] in LLAMA_LIKE else random_weights
    weights = checkpoint_weights(config, make(config, seed, STORED[storage.split()[0]]))
    llama_config, path, scratch = config, OUT / name, None
    shutil.rmtree(path, ignore_errors=True)
    if config["model_type"] == "internlm2":
        write_directory(path, config, internlm2_weights(config, weights))
        llama_config = equivalent_llama(config)
        scratch = tempfile.TemporaryDirectory()
        reference = pathlib.Path(scratch.name) / name
        write_directory(reference, llama_config, weights)
    elif in_mxfp4(config):
        write_directory(path, config, stored_weights(config, weights))
        scratch = tempfile.TemporaryDirectory()
        reference = pathlib.Path(scratch.name) / name
        write_directory(reference, {key: config[key] for key in config if key != "quantization_config"}, weights)
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


def stem(case):
    """A case's model without what its file's name ends in."""
    return re.sub(r"(-00001-of-\d+)?\.gguf$", "", case["model"])


def kept_cases(wanted):
    """The cases that are there already of models that are not written now."""
    file = OUT / "manifest.json"
    cases = json.loads(file.read_text())["cases"] if file.exists() else []
    return [case for case in cases if not wanted(stem(case))]


def place(case):
    """Directories first, then GGUF files, then blocks, as the tables have them."""
    tables = [list(VARIANTS), list(GGUF_VARIANTS), list(BLOCKS)]
    kind = 0 if stem(case) == case["model"] else 2 if stem(case) in BLOCKS else 1
    return kind, tables[kind].index(stem(case))


def write_all(prefixes):
    def wanted(name):
        return not prefixes or any(name.startswith(prefix) for prefix in prefixes)

    OUT.mkdir(parents=True, exist_ok=True)
    cases, written = kept_cases(wanted), {}
    for seed, name in enumerate(VARIANTS):
        if wanted(name):
            new, config, weights = write_variant(name, 1000 + 10 * seed)
            cases += new
            written[name] = (new[0], config, weights)
    for name, (description, source, kind, split) in GGUF_VARIANTS.items():
        if not wanted(name):
            continue
        case, config, weights = written[source]
        write_gguf(OUT / f"{name}.gguf", gguf_architecture(config), config, gguf_tensors(config, weights),
                   lambda _: gguf.GGMLQuantizationType[kind], split,
                   add_gguf_tokenizer if source == "llama-text" else None)
        file = f"{name}.gguf" if not split else sorted(OUT.glob(f"{name}-*.gguf"))[0].name
        cases.append(copy.deepcopy(case) | {"model": file, "description": description})
    for seed, name in enumerate(BLOCKS):
        if not wanted(name):
            continue
        ids, exact, error = block_model(name, 2000 + seed, reference_logits)
        exact.astype("<f4").tofile(OUT / f"{name}.f32")
        print(f"{name:26} {len(ids):3} tokens  float32 off by {error:.1e}")
        description, config, _ = BLOCKS[name]
        cases.append({"model": f"{name}.gguf", "ids": ids, "vocab_size": config["vocab_size"],
                      "logits": f"{name}.f32", "description": description})
    lines = ",\n    ".join(json.dumps(case) for case in sorted(cases, key=place))
    (OUT / "manifest.json").write_text(
        f'{{\n  "tolerance": {TOLERANCE},\n  "cases": [\n    {lines}\n  ]\n}}\n')
    total = sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file())
    print(f"{len(cases)} cases, {total / 1024:.0f} KiB in {OUT}")


def check_llama_cpp(prefixes):
    """Compares the GGUF files with llama.cpp, which shares no code with what made the logits."""
    import llama_cpp
    for case in json.loads((OUT / "manifest.json").read_text())["cases"]:
        name = case["model"]
        if not name.endswith(".gguf") or not name.startswith(tuple(prefixes or [""])):
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
        # llama.cpp looks GELU up in a table of 16-bit floats.
        assert error < (2e-3 if name.startswith("gemma") else TOLERANCE), name


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check-llama-cpp", action="store_true",
                        help="check the GGUF files that are there against llama.cpp; write nothing")
    parser.add_argument("--only", nargs="+", metavar="PREFIX", help="only models whose names begin so")
    options = parser.parse_args()
    (check_llama_cpp if options.check_llama_cpp else write_all)(options.only)
