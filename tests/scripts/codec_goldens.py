#!/usr/bin/env python3
"""Writes tests/golden/codec.bin: blocks and floats that the codecs must agree on.

Decoded and encoded values come from the gguf package, which is bit for bit ggml; for the activation
formats, which it lacks, from the few lines of numpy below. The blocks that Q2_K to Q6_K are to be
at least as good as come from ggml itself, through the library inside llama-cpp-python.

    pip install gguf numpy llama-cpp-python && python3 tests/scripts/codec_goldens.py

The file is a row of records, little-endian:
    char name[8]; uint32 kind; uint32 n_values; blocks[]; float32 values[n_values]
    kind 0: blocks decode to values; 1: values encode to blocks; 2: what ggml made of values.
"""
import ctypes
import glob
import os
import struct
import sys
import warnings

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

warnings.filterwarnings("ignore")  # infinite scales are part of the data
DECODE, ENCODE, BEST_OF_GGML = 0, 1, 2
rng = np.random.default_rng(20240229)

# Offsets of the F16 scales in each block, and the block's elements and bytes.
FORMATS = {
    "F16": (None, 1, 2), "BF16": (None, 1, 2), "Q8_0": ([0], 32, 34), "Q4_0": ([0], 32, 18),
    "Q4_1": ([0, 2], 32, 20), "Q5_0": ([0], 32, 22), "Q5_1": ([0, 2], 32, 24),
    "Q2_K": ([80, 82], 256, 84), "Q3_K": ([108], 256, 110), "Q4_K": ([0, 2], 256, 144),
    "Q5_K": ([0, 2], 256, 176), "Q6_K": ([208], 256, 210),
}
# The formats of levels and grids, which came later; theirs are the last records.
LATER = {
    "IQ4_NL": ([0], 32, 18), "IQ4_XS": ([0], 256, 136), "NVFP4": (None, 64, 36),
    "TQ1_0": ([52], 256, 54), "TQ2_0": ([64], 256, 66), "IQ3_XXS": ([0], 256, 98),
    "IQ3_S": ([0], 256, 110), "IQ2_XXS": ([0], 256, 66), "IQ2_XS": ([0], 256, 74),
    "IQ2_S": ([0], 256, 82), "IQ1_S": ([0], 256, 50), "IQ1_M": (None, 256, 56),
}
# As F16 bits: zeros, the smallest and largest subnormal, the smallest normal, one, the largest.
EXTREME_SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF]


def record(out, name, kind, blocks, values):
    out.write(struct.pack("<8sII", name.encode(), kind, values.size))
    out.write(blocks.tobytes())
    out.write(values.astype("<f4").tobytes())


def random_blocks(name):
    offsets, elements, size = (FORMATS | LATER)[name]
    blocks = rng.integers(0, 256, (1024 // elements, size), dtype=np.uint8)
    for offset in offsets or []:
        scales = rng.choice(np.array(EXTREME_SCALES, np.uint16), len(blocks))
        ordinary = rng.standard_normal(len(blocks)).astype(np.float16).view(np.uint16)
        take = rng.random(len(blocks)) < 0.5
        blocks[:, offset : offset + 2] = np.where(take, ordinary, scales)[:, None].view(np.uint8)
    return blocks


def rows_to_encode():
    """32 rows of 32, each a case of its own."""
    rows = rng.standard_normal((32, 32)).astype(np.float32)
    rows[0] = 0
    rows[1] = 1.5
    rows[2] = -1.5
    rows[3] = np.arange(32) - 16
    rows[4] = np.arange(32) * 0.5  # ties
    rows[5, 1:] = 0  # a single value
    rows[6] *= 1e-7  # scales among F16's subnormals
    rows[7] *= 1e-20  # scales below them
    rows[8] *= 1e4
    rows[9] *= 5e5  # close to F16's largest scale
    rows[10] += 10
    rows[11] -= 10
    rows[12, ::2] = -rows[12, ::2][0]  # two extremes of either sign
    rows[12, 1::2] = -rows[12, 0]
    rows[13] = 1e30  # an infinite scale, the levels still in order
    rows[14] *= 1e-36  # the inverse of the scale is still finite
    rows[15, :16] = 0
    return rows


def encode_q8_1(rows):
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    scaled = rows * inverse
    levels = np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))
    total = levels.sum(axis=1, keepdims=True, dtype=np.float32) * scale
    pieces = [scale.astype(np.float16), total.astype(np.float16), levels.astype(np.int8)]
    return np.hstack([piece.view(np.uint8) for piece in pieces])


def encode_q8_k(rows):
    extreme = np.take_along_axis(rows, np.abs(rows).argmax(axis=1, keepdims=True), axis=1)
    factor = np.float32(-127) / extreme
    levels = np.rint(rows * factor).astype(np.int8)
    sums = levels.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    pieces = [(np.float32(1) / factor).astype(np.float32), levels, sums]
    return np.hstack([piece.view(np.uint8) for piece in pieces])


def write_decoded(out):
    for name in FORMATS:
        blocks = random_blocks(name)
        if name in ("F16", "BF16"):  # finite: machines differ in the payloads of NaNs
            bits = blocks.view(np.uint16)
            bits[(bits & 0x7C00) == 0x7C00] = 0x3C00
        record(out, name, DECODE, blocks, dequantize(blocks, Type[name]).ravel())


def write_encoded(out):
    rows = rows_to_encode()
    for name in ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        record(out, name, ENCODE, quantize(rows, Type[name]), rows.ravel())
    ordinary = rng.standard_normal((4, 256)).astype(np.float32)
    ordinary[2] *= 1e-9
    ordinary[3] *= 1e9
    record(out, "Q8_1", ENCODE, encode_q8_1(rows[:13]), rows[:13].ravel())
    record(out, "Q8_K", ENCODE, encode_q8_k(ordinary), ordinary.ravel())
    levels = encode_q8_k(ordinary)
    decoded = levels[:, :4].copy().view(np.float32) * levels[:, 4:260].view(np.int8)
    record(out, "Q8_K", DECODE, levels, decoded.astype(np.float32).ravel())
    blocks = encode_q8_1(rows[:13])
    decoded = blocks[:, :2].copy().view(np.float16).astype(np.float32) * blocks[:, 4:].view(np.int8)
    record(out, "Q8_1", DECODE, blocks, decoded.astype(np.float32).ravel())


def write_best_of_ggml(out, names):
    import importlib.util

    package = os.path.dirname(importlib.util.find_spec("llama_cpp").origin)
    ggml = ctypes.CDLL(sorted(glob.glob(package + "/lib/libggml-base.so*"))[0])
    normal = rng.standard_normal((4, 256)) * 0.02
    heavy = rng.standard_t(3, (4, 256))
    uneven = (rng.standard_normal((4, 16, 16)) * np.exp(rng.standard_normal((4, 16, 1))))
    values = np.vstack([normal, heavy, uneven.reshape(4, 256)]).astype(np.float32)
    for name in names:
        elements, size = (FORMATS | LATER)[name][1:]
        symbol = name.lower() if name.startswith("IQ") else name.lower().replace("k", "K")
        function = getattr(ggml, "quantize_row_%s_ref" % symbol)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        for part in np.split(values, 3):
            blocks = np.zeros((part.size // elements, size), np.uint8)
            function(part.ctypes.data, blocks.ctypes.data, part.size)
            record(out, name, BEST_OF_GGML, blocks, part.ravel())


def write_later(out):
    for name in LATER:
        blocks = random_blocks(name)
        record(out, name, DECODE, blocks, dequantize(blocks, Type[name]).astype(np.float32).ravel())
    write_best_of_ggml(out, ("IQ4_NL", "IQ4_XS"))


def write_mxfp4(out):
    own = np.random.default_rng(39)
    blocks = own.integers(0, 255, (32, 17), dtype=np.uint8)  # 255 is no exponent
    blocks[:8, 0] = [0, 1, 2, 127, 253, 254, 128, 3]
    record(out, "MXFP4", DECODE, blocks, dequantize(blocks, Type.MXFP4).astype(np.float32).ravel())
    rows = own.standard_normal((32, 32)).astype(np.float32)
    rows *= (2.0 ** own.integers(-100, 100, (32, 1))).astype(np.float32)
    rows[0] = 0
    rows[1, 0] = np.nextafter(np.float32(4), np.float32(0))  # its logarithm rounds to 2
    record(out, "MXFP4", ENCODE, quantize(rows, Type.MXFP4), rows.ravel())


def main():
    default = os.path.join(os.path.dirname(__file__), "..", "golden", "codec.bin")
    with open(sys.argv[1] if len(sys.argv) > 1 else default, "wb") as out:
        write_decoded(out)
        write_encoded(out)
        write_best_of_ggml(out, ("Q4_K", "Q6_K", "Q2_K", "Q3_K", "Q5_K"))
        write_later(out)
        write_mxfp4(out)


if __name__ == "__main__":
    main()
