#!/usr/bin/env python3
"""Vectors, scores and orders of quipu serve beside transformers', and sentence-transformers' where that is installed: mean and
last-token pooling, token ids and texts, /v1/embeddings, /v1/score and /v1/rerank.

    QUIPU_BINARY=build/quipu python3 tests/scripts/embeddings_compare.py [MODEL]

MODEL is a directory of Hugging Face with safetensors; without it a Qwen 3 of random weights is made. Ends with the largest difference
of a value of vectors of length 1, and status 1 if that is above 1e-5.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import urllib.request

import tokenizers
import torch
import transformers

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
RNG = random.Random(7)


def make_model(folder):
    torch.manual_seed(7)
    config = transformers.Qwen3Config(vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=True)
    transformers.Qwen3ForCausalLM(config).float().save_pretrained(folder)
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(["the giant panda is a bear of China"], vocab_size=270, min_frequency=1)
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="!", pad_token="!").save_pretrained(folder)
    return folder


class Server:
    def __init__(self, model, pooling):
        self.process = subprocess.Popen([QUIPU, "serve", "-m", model, "--port", "0", "--pooling", pooling, "--activations", "float",
                                         "--kv-type", "F32"],
                                        stderr=subprocess.PIPE, text=True)
        line = ""
        while "listening" not in line:
            line = self.process.stderr.readline()
        self.url = "http://127.0.0.1:" + re.search(r":(\d+)", line.split("//")[1])[1]
        while "ready" not in self.process.stderr.readline():
            pass

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def unit(vector):
    return vector / vector.norm()


def main():
    worst = 0.0
    with tempfile.TemporaryDirectory() as top:
        path = sys.argv[1] if len(sys.argv) > 1 else make_model(top)
        model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
        size = model.config.vocab_size
        texts = [[RNG.randrange(3, size) for _ in range(n)] for n in (1, 2, 7, 33, 120)]
        with torch.no_grad():
            states = [model(input_ids=torch.tensor([t])).last_hidden_state[0] for t in texts]
        for pooling, vectors in (("mean", [unit(s.mean(0)) for s in states]), ("last", [unit(s[-1]) for s in states])):
            with Server(path, pooling) as server:
                got = [torch.tensor(d["embedding"]) for d in server.post("/v1/embeddings", {"input": texts})["data"]]
            difference = max((a - b).abs().max().item() for a, b in zip(got, vectors))
            cosine = max((1 - a @ b).abs().item() for a, b in zip(got, vectors))
            print(f"{pooling}: largest difference {difference:.2e}, of the cosine from 1 {cosine:.2e}")
            worst = max(worst, difference)
        worst = max(worst, compare_texts(path, model))
    print(f"largest difference {worst:.2e}")
    return int(worst > 1e-5)


def compare_texts(path, model):
    """Scores and orders of texts, with the model's own tokenizer; 0 if it has none."""
    if not os.path.exists(f"{path}/tokenizer.json"):
        print("texts: not compared, the model has no tokenizer.json")
        return 0.0
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    query, texts = "What is a panda?", ["hi", "The giant panda is a bear.", "It is a nice day.", "Bears live in China."]
    with torch.no_grad():
        vectors = [unit(model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0].mean(0)) for t in [query, *texts]]
    scores = [(vectors[0] @ v).item() for v in vectors[1:]]
    with Server(path, "mean") as server:
        given = [d["score"] for d in server.post("/v1/score", {"text_1": query, "text_2": texts})["data"]]
        ranked = [r["index"] for r in server.post("/v1/rerank", {"query": query, "documents": texts})["results"]]
        embedded = server.post("/v1/embeddings", {"input": [query, *texts]})["data"]
    assert ranked == sorted(range(len(texts)), key=lambda i: -scores[i]), (ranked, scores)
    worst = max(abs(a - b) for a, b in zip(given, scores))
    print(f"texts: largest difference of a score {worst:.2e}, the same order")
    try:
        from sentence_transformers import SentenceTransformer, models
    except ImportError:
        return worst
    whole = SentenceTransformer(modules=[models.Transformer(path), models.Pooling(model.config.hidden_size, "mean"), models.Normalize()])
    theirs = whole.encode([query, *texts])
    difference = max(abs(a - b) for d, v in zip(embedded, theirs) for a, b in zip(d["embedding"], v.tolist()))
    print(f"sentence-transformers: largest difference {difference:.2e}")
    return max(worst, difference)


if __name__ == "__main__":
    sys.exit(main())
