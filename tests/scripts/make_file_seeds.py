"""Writes the seeds of fuzz_gguf and fuzz_safetensors: tiny files of many shapes, written byte by byte.

usage: make_file_seeds.py FOLDER    (such as fuzz/corpus)
"""
import json
import struct
import sys
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = "BbHhIif?..Qqd"


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    return string(x) if kind == STRING else struct.pack("<" + FORMATS[kind], x)


def key(name, kind, x):
    return string(name) + struct.pack("<I", kind) + value(kind, x)


def array(name, kind, xs):
    head = string(name) + struct.pack("<IIQ", ARRAY, kind, len(xs))
    return head + b"".join(value(kind, x) for x in xs)


def info(name, dims, kind, offset):
    packed = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + packed + struct.pack("<IQ", kind, offset)


def gguf(keys, infos=(), data=b"", version=3, alignment=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys))
    head += b"".join(keys) + b"".join(infos)
    if infos:
        head += bytes(-len(head) % alignment)
    return head + data


def safetensors(header, data=b""):
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GGUF = {
    "empty": gguf([]),
    "version2": gguf([key("general.architecture", STRING, "llama")], version=2),
    "scalars": gguf([key(f"k{i}", i, 1) for i in range(13) if i not in (STRING, ARRAY)]),
    "arrays": gguf([array(f"a{i}", i, [1, 0]) for i in range(13) if i not in (STRING, ARRAY)]
                   + [array("s", STRING, ["a", "", "bc"]), array("e", STRING, [])]),
    "tensors": gguf([key("general.alignment", U32, 64)],
                    [info("a.weight", [8, 2], 0, 0), info("b.weight", [32], 2, 64),
                     info("c.weight", [256], 12, 128)], bytes(128 + 144), alignment=64),
    "foreign": gguf([], [info("t", [256], 17, 0)], bytes(32)),
    "split": gguf([key("split.no", U16, 0), key("split.count", U16, 2),
                   key("split.tensors.count", I32, 0)]),
    "nested": gguf([string("n") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]),
}

SAFETENSORS = {
    "empty": safetensors({}),
    "types": safetensors({"a": tensor("F32", [2, 1], 0, 8), "b": tensor("F16", [], 8, 10),
                          "c": tensor("BF16", [0], 10, 10), "d": tensor("F8_E4M3", [1], 10, 11)},
                         bytes(11)),
    "metadata": safetensors({"__metadata__": {"format": "pt"}, "x": tensor("I64", [1], 0, 8)},
                            bytes(8)),
    "unaligned": safetensors({"a": tensor("F32", [1], 1, 5)}, bytes(5)),
}

for folder, seeds in (("gguf", GGUF), ("safetensors", SAFETENSORS)):
    path = Path(sys.argv[1]) / folder
    path.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (path / name).write_bytes(data)
