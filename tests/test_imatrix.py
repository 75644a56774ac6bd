#!/usr/bin/env python3
"""Importance matrices of `quipu convert`: made from a text they are the squares of what products read, as --dump shows
it; the files of llama.cpp, in both forms, give the same weights; files that are damaged or of another model are
refused. Ends with "N passed, N failed"."""
import contextlib
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("skipped: python3-numpy is missing")
    sys.exit(77)

from server_process import MODEL, QUIPU, run_tests, test

TEXT = "Once upon a time there was a knotted cord. Each knot was a number, and each cord a story of its own.\n"
TYPES = "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"
DOWN = "blk.0.ffn_down.weight"


def run(*arguments):
    return subprocess.run([QUIPU, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=120)


def done(*arguments):
    out = run(*arguments)
    assert out.returncode == 0, out.stderr
    return out


def refused(out, *words):
    assert out.returncode != 0, f"not refused: {out.stdout} {out.stderr}"
    for word in words:
        assert word in out.stderr, f"{word!r} is not in {out.stderr!r}"


# ---- Files of llama.cpp ----

def older(entries, calls=3, chunks=3, dataset="wiki.txt"):
    """{name: mean squares} in the form of imatrix.dat."""
    out = struct.pack("<i", len(entries))
    for name, means in entries.items():
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, means.size)
        out += (means * calls).astype(np.float32).tobytes()
    return out + struct.pack("<ii", chunks, len(dataset)) + dataset.encode()


def gguf(tensors, keys):
    """Float32 tensors and keys that are strings or numbers."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        out += text(key) + (struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value))
    offset = 0
    for name, value in tensors.items():
        out += text(name) + struct.pack("<I", value.ndim) + struct.pack(f"<{value.ndim}Q", *reversed(value.shape))
        out += struct.pack("<IQ", 0, offset)
        offset += -(-value.nbytes // 32) * 32
    out += b"\0" * (-len(out) % 32)
    for value in tensors.values():
        out += value.tobytes() + b"\0" * (-value.nbytes % 32)
    return out


def newer(entries, count=48.0, keys=None):
    tensors = {}
    for name, means in entries.items():
        tensors[name + ".in_sum2"] = (means * count).astype(np.float32).reshape(1, -1)
        tensors[name + ".counts"] = np.full((1, 1), count, np.float32)
    return gguf(tensors, keys or {"general.type": "imatrix", "imatrix.chunk_count": 3, "imatrix.chunk_size": 512})


def read_gguf(path):
    """{name: float32 array} of a file that quipu has written, whose other types are left out."""
    data = Path(path).read_bytes()
    at = 8

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            each, n = take("IQ")
            return [value(each) for _ in range(n)]
        return take("BbHhIif?__QqdQ"[kind])

    n_tensors, n_keys = take("QQ")
    keys = {text(): value(take("I")) for _ in range(n_keys)}
    infos = []
    for _ in range(n_tensors):
        name, rank = text(), take("I")
        shape = [take("Q") for _ in range(rank)][::-1]
        infos.append((name, shape, take("I"), take("Q")))
    start = -(-at // 32) * 32
    return keys, {name: np.frombuffer(data, np.float32, int(np.prod(shape)), start + offset).reshape(shape)
                  for name, shape, kind, offset in infos if kind == 0}


class Folder:
    def __init__(self, path):
        self.path = Path(path)
        self.text = self.write("text.txt", TEXT.encode())
        draw = np.random.default_rng(5)
        self.means = {f"blk.{layer}.ffn_down.weight": (10 ** draw.normal(0, 1.5, 32)).astype(np.float32) for layer in range(2)}
        for means in self.means.values():
            means[3] = 1e6  # what no exponent of MXFP4 is too small for

    def write(self, name, data):
        (self.path / name).write_bytes(data)
        return self.path / name

    def convert(self, *options, kind="Q4_0", name="out.gguf"):
        return run("convert", "-m", MODEL, "-o", self.path / name, "--type", kind, "--pure", "-t", 2, *options)

    def bytes_of(self, matrix, kind="Q4_0"):
        out = self.convert(*(["--imatrix", matrix] if matrix else []), kind=kind)
        assert out.returncode == 0, out.stderr
        return (self.path / "out.gguf").read_bytes()


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="quipu-imatrix-") as path:
        yield Folder(path)


@test
def a_text_gives_squares_of_inputs(f):
    out = f.convert("--imatrix", f.text, "--imatrix-out", f.path / "m.gguf")
    assert out.returncode == 0, out.stderr
    keys, tensors = read_gguf(f.path / "m.gguf")
    assert keys["general.type"] == "imatrix" and keys["imatrix.chunk_count"] == 1, keys
    done("run", "--raw", "-m", MODEL, "-f", f.text, "-n", 1, "--temp", 0, "-t", 2, "--device", "cpu", "--dump", "layers.0.*", "-o",
         f.path / "dump")
    data = (f.path / "dump").read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])

    def rows(name, columns):
        entry = header["0." + name]
        begin, end = entry["data_offsets"]
        return np.frombuffer(data[8 + length + begin:8 + length + end], np.float32).reshape(entry["shape"])[:, :columns]

    for weight, tensor, columns in ("attn_q", "attn_norm.x_", 24), ("attn_v", "attn_norm.x_", 24), \
            ("attn_output", "attention.attn", 24), ("ffn_up", "ffn_norm.x_", 24), ("ffn_down", "activation.ffn", 32):
        x = rows("layers.0." + tensor, columns).astype(np.float64)
        sums, counts = tensors[f"blk.0.{weight}.weight.in_sum2"], tensors[f"blk.0.{weight}.weight.counts"]
        assert counts[0, 0] == len(x), f"{counts} rows of {len(x)}"
        np.testing.assert_allclose(sums[0], (x * x).sum(0), rtol=1e-4)
    assert tensors["blk.1.ffn_down.weight.counts"][0, 0] == len(x), "the last layer has all rows"
    assert "output.weight.counts" not in tensors


@test
def forms_agree(f):
    dat, new = f.write("m.dat", older(f.means)), f.write("m.gguf", newer(f.means))
    for kind in TYPES:
        plain, weighted = f.bytes_of(None, kind), f.bytes_of(dat, kind)
        assert weighted != plain, f"{kind} is not weighted"
        assert f.bytes_of(new, kind) == weighted, kind
    written = f.path / "again.gguf"
    out = f.convert("--imatrix", f.text, "--imatrix-out", written)
    assert out.returncode == 0 and f.bytes_of(written) == f.bytes_of(f.text), out.stderr


@test
def the_oldest_form_ends_early(f):
    whole = older(f.means)
    assert f.bytes_of(f.write("old.dat", whole[:-len("wiki.txt") - 8])) == f.bytes_of(f.write("m.dat", whole))


@test
def inputs_without_rows_are_alike(f):
    none = newer({name: means * 0 for name, means in f.means.items()}, count=0.0)
    ones = newer({name: means * 0 + 1 for name, means in f.means.items()})
    assert f.bytes_of(f.write("none.gguf", none)) == f.bytes_of(f.write("ones.gguf", ones))


@test
def what_is_left_out_is_said(f):
    more = {**f.means, "blk.7.ffn_down.weight": f.means[DOWN]}
    out = f.convert("--imatrix", f.write("m.dat", older(more)), kind="MXFP4")
    assert out.returncode == 0 and "1 tensors are not of the model, such as blk.7.ffn_down.weight" in out.stderr, out.stderr
    one = {DOWN: f.means[DOWN]}
    out = f.convert("--imatrix", f.write("m.dat", older(one)))
    assert "quantised without importance, such as blk.1.ffn_down.weight" in out.stderr, out.stderr


@test
def other_models_are_refused(f):
    def says(data, *words):
        (f.path / "out.gguf").unlink(missing_ok=True)
        refused(f.convert("--imatrix", f.write("m", data)), *words)
        assert not (f.path / "out.gguf").exists()

    says(older({DOWN: f.means[DOWN][:31]}), DOWN, "has 31 values, expected 1 matrices of 32: it is of another model")
    says(newer({DOWN: np.ones(64, np.float32)}), "64 values", "another model")
    says(older({"blk.9.ffn_down.weight": f.means[DOWN]}), "none of its tensors", "blk.9.ffn_down.weight")
    says(Path(MODEL).read_bytes(), 'expected "imatrix": it is no importance matrix')


@test
def damaged_files_are_refused(f):
    whole, new = older(f.means), newer(f.means)

    def says(data, *words):
        refused(f.convert("--imatrix", f.write("m", data)), f"{f.path}/m", *words)

    for end in 3, 6, 10, 30, 40, 100, len(whole) - 15 - len("wiki.txt"):
        says(whole[:end] if end > 3 else b"\1\0\0", "is cut off, or no importance matrix of llama.cpp")
    says(whole[:100], "ends within the values of a tensor")
    says(struct.pack("<i", 0) + whole[4:], "the number of entries is 0", "is damaged, or no importance matrix of llama.cpp")
    says(struct.pack("<ii", 1, -5) + whole[8:], "the length of a name is -5")
    says(struct.pack("<ii4sii", 1, 4, b"name", -1, 4), "the number of calls is -1")
    says(struct.pack("<ii4sii", 1, 4, b"name", 1, 0), "the number of values is 0")
    says(older(f.means, chunks=-2), "the number of chunks is -2")
    for bad in -1.0, float("nan"), float("inf"):
        means = f.means[DOWN].copy()
        means[7] = bad
        says(older({DOWN: means}), DOWN, "at 7, expected finite numbers of at least 0")
        says(newer({DOWN: means}), DOWN, "has a sum of squares of", "at 7, expected finite")
    says(new[:200], "m")
    says(newer(f.means, keys={"general.type": "imatrix"}).replace(b".counts", b".kounts"), f"has no {DOWN}.counts beside it")
    says(gguf({"a": np.ones(4, np.float32)}, {"general.type": "imatrix"}), "has no tensor NAME.in_sum2")
    says(newer(f.means, keys={"general.type": "model"}), 'general.type is "model"', "it is no importance matrix")
    says(gguf({DOWN + ".in_sum2": np.ones((1, 32), np.float32), DOWN + ".counts": np.ones((2, 1), np.float32)},
              {"general.type": "imatrix"}), ".counts is (2, 1), expected (1, 1)")
    says(gguf({DOWN + ".in_sum2": np.ones((1, 1, 32), np.float32)}, {"general.type": "imatrix"}), "no matrix in F32")


@test
def options_are_checked(f):
    refused(f.convert("--imatrix-out", f.path / "m.gguf"), "--imatrix-out needs --imatrix with a text to make it from")
    refused(f.convert("--imatrix", f.path / "absent"), "absent")
    refused(f.convert("--imatrix", f.write("empty", b"")), "empty")
    refused(f.convert("--imatrix", f.write("blank", b" ")), "the text has no words")
    norm = read_gguf(MODEL)[1]["blk.0.attn_norm.weight"]
    huge = f.write("huge.gguf", MODEL.read_bytes().replace(norm.tobytes(), (norm * 1e38).astype(np.float32).tobytes(), 1))
    refused(run("convert", "-m", huge, "-o", f.path / "out.gguf", "--imatrix", f.text), "not finite, so they have no importance")
    refused(run("convert", "-m", "synthetic:tiny", "-o", f.path / "out.gguf", "--imatrix", f.text), "no vocabulary")


if __name__ == "__main__":
    sys.exit(run_tests(folder))
