#!/usr/bin/env python3
"""Files quantised by `quipu convert` and by llama.cpp from the same model, without and with the same importance matrix:
the Kullback-Leibler divergence of their predictions from the model's own, and the perplexity.

    imatrix_compare.py MODEL.gguf --calibrate TEXT --text TEXT [--types Q4_0,IQ4_NL] [--quipu build/quipu]

The matrix is made by quipu from the calibration text. All files are run by quipu over the first 300 tokens of the text; the
last 240 are scored. Needs numpy, gguf and llama-cpp-python.
"""
import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import llama_cpp as low

FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18,
              "IQ4_NL": 25, "IQ4_XS": 30}
TOKENS, SKIPPED = 300, 60


def log_probabilities(quipu, model, ids, folder):
    out = folder / "logits"
    subprocess.run([quipu, "logits", "-m", model, "--ids", ",".join(ids), "-o", out, "--device", "cpu"], check=True,
                   capture_output=True)
    x = np.fromfile(out, np.float32).reshape(TOKENS, -1)[SKIPPED:-1].astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


class Matrix:
    """The matrix as llama_model_quantize() takes it."""

    def __init__(self, path):
        tensors = {t.name: np.array(t.data).reshape(-1) for t in gguf.GGUFReader(path).tensors}
        names = sorted(n.removesuffix(".in_sum2") for n in tensors if n.endswith(".in_sum2"))
        self.kept = [(n.encode(), np.ascontiguousarray(tensors[n + ".in_sum2"] / tensors[n + ".counts"][0], np.float32)) for n in names]
        self.entries = (low.llama_model_imatrix_data * (len(names) + 1))()
        for entry, (name, means) in zip(self.entries, self.kept):
            entry.name, entry.size = name, means.size
            entry.data = means.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def quantise_by_llama_cpp(model, kind, matrix, out):
    params = low.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    params.allow_requantize = True
    if matrix:
        params.imatrix = ctypes.cast(matrix.entries, type(params.imatrix))
    assert low.llama_model_quantize(str(model).encode(), str(out).encode(), ctypes.byref(params)) == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--calibrate", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--types", default="Q4_0,Q4_1,Q5_0,IQ4_NL,Q3_K_M")
    parser.add_argument("--quipu", default="build/quipu")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        out, written = folder / "out.gguf", folder / "matrix.gguf"

        def convert(kind, *options):
            subprocess.run([a.quipu, "convert", "-m", a.model, "-o", out, "--type", kind, *options], check=True, capture_output=True)

        convert("Q4_0", "--imatrix", a.calibrate, "--imatrix-out", written)
        text = Path(a.text).read_bytes()
        ids = subprocess.run([a.quipu, "tokenize", "-m", a.model], input=text, check=True, capture_output=True).stdout
        ids = ids.decode().replace(",", " ").split()[:TOKENS]
        following = np.array([int(i) for i in ids[SKIPPED + 1:]])
        own = log_probabilities(a.quipu, a.model, ids, folder)

        def judge():
            other = log_probabilities(a.quipu, out, ids, folder)
            divergence = (np.exp(own) * (own - other)).sum(1).mean()
            return f"{divergence:.4f} / {np.exp(-other[np.arange(len(following)), following].mean()):.3f}"

        print("| divergence / perplexity | quipu | quipu with the matrix | llama.cpp | llama.cpp with the matrix |\n|---|---|---|---|---|")
        for kind in a.types.split(","):
            row = []
            for options in [], ["--imatrix", written]:
                convert(kind, *options)
                row.append(judge())
            for matrix in None, Matrix(written):
                quantise_by_llama_cpp(a.model, kind, matrix, out)
                row.append(judge())
            print(f"| {kind} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
