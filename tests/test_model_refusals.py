#!/usr/bin/env python3
"""Models, tokenizers and adapters with one thing wrong: each is refused with a sentence that names it. See cli_process.py."""
import json
import shutil
import struct
import sys
from pathlib import Path

from cli_process import MODELS, TEMPORARY, check, expect, quipu, run_parts

# ---- GGUF: keys are put before those of a file; alignment and data stay ---------------------------

FORMS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q")}


def text_of(text):
    return struct.pack("<Q", len(text)) + text.encode()


def value_of(value):
    """(number of the type, bytes): a text, (form, number), or (form, [numbers])."""
    if isinstance(value, str):
        return 8, text_of(value)
    number, form = FORMS[value[0]]
    if isinstance(value[1], list):
        return 9, struct.pack("<IQ", number, len(value[1])) + b"".join(struct.pack(form, v) for v in value[1])
    return number, struct.pack(form, value[1])


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found[0]

    def text(self):
        length = self.take("<Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def skip(self, kind):
        sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
        if kind == 8:
            self.text()
        elif kind == 9:
            of, count = self.take("<I"), self.take("<Q")
            for _ in range(count):
                self.skip(of)
        else:
            self.at += sizes[kind]


def with_keys(source, target, changes):
    """A copy of a GGUF file in which these keys have these values; None: is not there."""
    r = Reader(source.read_bytes())
    head, tensors, keys = r.take("<Q"), r.take("<Q"), r.take("<Q")
    kept = []
    for _ in range(keys):
        begin = r.at
        name = r.text()
        r.skip(r.take("<I"))
        if name not in changes:
            kept.append(r.data[begin:r.at])
    list_begin = r.at
    for _ in range(tensors):
        r.text()
        dimensions = r.take("<I")
        r.at += 8 * dimensions + 12
    entries = r.data[list_begin:r.at]
    made = [text_of(name) + struct.pack("<I", kind) + data for name, (kind, data) in
            ((name, value_of(value)) for name, value in changes.items() if value is not None)]
    new = struct.pack("<QQQ", head, tensors, len(kept) + len(made)) + b"".join(kept + made) + entries
    target.write_bytes(new + bytes(-len(new) % 32) + r.data[r.at + -r.at % 32:])


def keys_of_gguf():
    model = Path(TEMPORARY, "changed.gguf")
    cases = (("llama-text", {"llama.pooling_type": ("u32", 99)}, "expected a kind of pooling from 0 to "),
             ("llama-text", {"llama.attention.clamp_kqv": ("f32", 3)}, "expected 0 or no such key"),
             ("llama-text", {"llama.rope.scaling.attn_factor": ("f32", 3)}, "with which quipu does not compute; expected 1 or no such key"),
             ("llama-text", {"llama.block_count": ("u64", 1 << 63)}, "must be at most 9223372036854775807, found "),
             ("llama-text", {"split.count": ("u32", 70000)}, '"split.count" must be from 0 to '),
             ("llama-text", {"tokenizer.ggml.token_type": ("i32", [1, 1])}, "has 2 entries for "),
             ("llama-text", {"tokenizer.ggml.scores": ("f32", [1, 1])}, "has 2 entries for "),
             ("llama-text", {"tokenizer.ggml.bos_token_id": ("u32", 99999)}, ", but the vocabulary has "),
             ("qwen3moe", {"qwen3moe.expert_count": None}, "is a mixture of experts"),
             ("qwen3", {"qwen3.expert_count": ("u32", 4)}, "is only supported as dense models"),
             ("qwen3moe", {"qwen3moe.expert_shared_count": ("u32", 1)}, "expected 0 or no such key"),
             ("gemma2", {"gemma2.attention.sliding_window_pattern": ("u32", 0)}, "must be at least 1, found 0"),
             ("gemma3", {"gemma3.attention.sliding_window_pattern": ("bool", [True])}, "flags; expected one for each of "),
             ("gpt-oss-mxfp4", {"gpt-oss.attention.sliding_window_pattern": ("bool", [])}, "has 0 flags; expected one for each of "))
    for name, changes, said in cases:
        source = MODELS / f"{name}.gguf"
        if not source.exists():
            continue
        with_keys(source, model, changes)
        status, _, err = quipu("tokenize" if "tokenizer" in str(changes) else "info", "-m", str(model), stdin=b"a")
        check(status != 0 and said in err, f"{name} with {changes}: expected {said!r} in {status} {err!r}")


# ---- safetensors: one tensor's entry is changed, or its name ---------------------------------------

def with_tensors(folder, change):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    head = json.loads(data[8:8 + length])
    change(head)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])


def changed(name, config=None, tensors=None):
    """A copy of a golden model with another config.json (a dict laid over it) or other tensors."""
    folder = Path(TEMPORARY, "changed")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MODELS / name, folder)
    if config:
        old = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(old | config))
    if tensors:
        with_tensors(folder, tensors)
    return folder


def tensors_of_experts():
    def gone(part):
        return lambda head: head.pop(next(name for name in head if name.endswith(part)))

    def flat(part):
        def change(head):
            entry = head[next(name for name in head if name.endswith(part))]
            count = 1
            for n in entry["shape"]:
                count *= n
            entry["shape"] = [count]
        return change
    for said, tensors in (("_blocks\" is there", gone("gate_up_proj_scales")),
                          ("must be of U8, (experts, rows, columns / 32, 16)", flat("gate_up_proj_blocks")),
                          ("must be of U8, with a scale for each block", flat("gate_up_proj_scales"))):
        expect(1, said, "info", "-m", str(changed("gpt-oss-mxfp4", tensors=tensors)))

    def flat_experts(head):
        for name, entry in head.items():
            if ".experts." in name and name.endswith("gate_proj.weight"):
                entry["shape"] = [entry["shape"][0] * entry["shape"][1]]
    expect(1, "must have 2 dimensions, found 1", "info", "-m", str(changed("qwen3moe", tensors=flat_experts)))


# ---- Tokenizers --------------------------------------------------------------------------------------

def tokenizers():
    folder = Path(TEMPORARY, "tokenizer")
    source = json.loads((MODELS / "llama-text/tokenizer.json").read_text())
    settings = json.loads((MODELS / "llama-text/tokenizer_config.json").read_text())

    def refused(said, tokenizer=None, config=None, **files):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if tokenizer is not False:
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer or source))
        (folder / "tokenizer_config.json").write_text(json.dumps(config or settings))
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        expect(1, said, "tokenize", "-m", str(folder), stdin=b"a")
    refused('"added_tokens_decoder" has "first" where an id belongs',
            config=settings | {"added_tokens_decoder": {"first": {"content": "x"}}})
    refused("expected an object of tokens and ids, found an array", tokenizer=False, vocab_json="[]", merges_txt="a b\n")
    step = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": False}
    refused(" pre-tokenizers in a row", source | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [step] * 99}})
    model = source["model"]
    if model.get("merges"):
        refused("holds a character that is not a byte's letter",
                source | {"model": model | {"merges": ["\u4e00 \u4e01"], "vocab": model["vocab"]}})


# ---- Adapters ----------------------------------------------------------------------------------------

def adapters():
    folder = Path(TEMPORARY, "adapter")
    folder.mkdir()
    run = ["run", "-m", str(MODELS / "llama-text"), "-p", "a", "-n", "1", "--lora", str(folder)]

    def config(**more):
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2} | more))
    config()
    (folder / "adapter_model.bin").write_bytes(b"x")
    expect(1, "save the adapter with safe_serialization=True if it is in adapter_model.bin", *run)
    rank = 5000
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    hidden = json.loads((MODELS / "llama-text/config.json").read_text())["hidden_size"]
    head = {name + "A.weight": {"dtype": "F32", "shape": [rank, hidden], "data_offsets": [0, 4 * rank * hidden]},
            name + "B.weight": {"dtype": "F32", "shape": [hidden, rank], "data_offsets": [4 * rank * hidden, 8 * rank * hidden]}}
    text = json.dumps(head).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * rank * hidden))
    config(r=rank)
    expect(1, "must be 1 to ", *run)


sys.exit(run_parts(keys_of_gguf, tensors_of_experts, tokenizers, adapters))
