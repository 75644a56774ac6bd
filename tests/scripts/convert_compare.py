#!/usr/bin/env python3
"""Compares `quipu convert` with llama.cpp: the types of its mixes, and whether llama.cpp runs its files.

    python tests/scripts/convert_compare.py MODEL... [--quipu build/quipu] [--text FILE] [--types T,...]

For each model (a GGUF file, a Hugging Face directory, synthetic:...) and type:
  types       llama.cpp quantises quipu's F32 file itself; every tensor must be of the same type in
              both files, except that quipu writes Q4_0 in place of IQ4_NL
  loads       llama.cpp reads quipu's file and evaluates tokens
  agreement   on the text (or the ids of synthetic models): share of positions where llama.cpp and
              quipu, on the same file, and llama.cpp on quipu's and on its own file, name the same
              likeliest token; and the perplexity that llama.cpp finds with both files
Status 1 if a type differs, a file does not load, or quipu's perplexity is more than 2 % above that of
llama.cpp's own file. Needs numpy, gguf and llama-cpp-python; writes into a temporary folder.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9,
              "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15,
              "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18}
POSITIONS = 256


def tensor_types(path):
    import gguf
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


def quantize(low, source, target, name):
    params = low.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[name]
    params.nthread = 2
    return low.llama_model_quantize(str(source).encode(), str(target).encode(),
                                    ctypes.byref(params)) == 0


class Peer:
    """A file opened in llama.cpp."""

    def __init__(self, low, path):
        params = low.llama_model_default_params()
        params.use_extra_bufts = False
        self.low, self.model = low, low.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        context = low.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = POSITIONS
        context.n_threads = context.n_threads_batch = 2
        self.context = low.llama_init_from_model(self.model, context)
        self.vocab = low.llama_model_get_vocab(self.model)

    def tokenize(self, text):
        data = text.encode()
        ids = (self.low.llama_token * (len(data) + 8))()
        count = self.low.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:count])

    def logits(self, ids):
        low = self.low
        batch = low.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if low.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama.cpp does not evaluate the tokens")
        n = low.llama_vocab_n_tokens(self.vocab)
        rows = [np.ctypeslib.as_array(low.llama_get_logits_ith(self.context, i), (n,)).copy()
                for i in range(len(ids))]
        low.llama_batch_free(batch)
        return np.stack(rows)

    def close(self):
        self.low.llama_free(self.context)
        self.low.llama_model_free(self.model)


def quipu_logits(quipu, model, ids, folder):
    out = folder / "logits.f32"
    subprocess.run([quipu, "logits", "-m", str(model), "--ids", ",".join(map(str, ids)), "-o",
                    str(out)], check=True, stdout=subprocess.DEVNULL)
    return np.fromfile(out, "<f4").reshape(len(ids), -1)


def perplexity(logits, ids):
    rows = logits[:-1].astype(np.float64)
    top = rows.max(axis=1)
    total = np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top
    return float(np.exp(np.mean(total - rows[np.arange(len(rows)), ids[1:]])))


def agreement(a, b):
    return float(np.mean(a.argmax(axis=1) == b.argmax(axis=1)))


def check_types(own, peer):
    wrong = [f"{name}: {own.get(name)}, llama.cpp has {kind}" for name, kind in peer.items()
             if own.get(name) != kind and (kind, own.get(name)) != ("IQ4_NL", "Q4_0")]
    return wrong + [f"{name}: llama.cpp has none" for name in own if name not in peer]


def check(low, options, model, name, base, folder):
    own, peer = folder / "own.gguf", folder / "peer.gguf"
    subprocess.run([options.quipu, "convert", "-m", str(base), "-o", str(own), "--type", name],
                   check=True)
    if not quantize(low, base, peer, name):
        print(f"{model} {name}: llama.cpp does not quantise quipu's F32 file")
        return False
    wrong = check_types(tensor_types(own), tensor_types(peer))
    ours, theirs = Peer(low, own), Peer(low, peer)
    ids = (ours.tokenize(options.text.read_text())[:POSITIONS] if options.text
           and not model.startswith("synthetic:") else [(i * 7919 + 1) % 500 for i in range(64)])
    a, b = ours.logits(ids), theirs.logits(ids)
    c = quipu_logits(options.quipu, own, ids, folder)
    ours.close()
    theirs.close()
    pa, pb = perplexity(a, ids), perplexity(b, ids)
    print(f"{model} {name}: types {'equal' if not wrong else 'DIFFER'}; same likeliest token: "
          f"quipu and llama.cpp {agreement(a, c):.3f}, both files {agreement(a, b):.3f}; "
          f"perplexity {pa:.3f} (quipu's reading {perplexity(c, ids):.3f}), llama.cpp's file "
          f"{pb:.3f}", flush=True)
    for line in wrong[:8]:
        print("  " + line)
    return not wrong and pa <= 1.02 * pb


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--types", default=",".join(FILE_TYPES))
    options = parser.parse_args()
    from llama_cpp import llama_cpp as low
    silence = low.llama_log_callback(lambda level, text, data: None)
    low.llama_log_set(silence, ctypes.c_void_p(0))
    low.llama_backend_init()
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for model in options.models:
            base = folder / "base.gguf"
            subprocess.run([options.quipu, "convert", "-m", model, "-o", str(base), "--type",
                            "F32"], check=True)
            for kind in options.types.split(","):
                good = check(low, options, model, kind, base, folder) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
