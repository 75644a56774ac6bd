#!/usr/bin/env python3
"""A virtual machine for schedules in a hundred lines: numpy runs each worker's instructions one by one.

    python3 examples/interpreter.py MODEL_FOLDER 1,2,3 [WORKERS]

MODEL_FOLDER has a Llama's config.json and model.safetensors. `quipu schedule --linear --json` gives the instructions, with
their operands, slices and needs; the memory is a dictionary of arrays, one for each name that operands have. Workers take
turns; one whose next instruction needs others waits. The logits of the last token are compared with those of `quipu logits`.
$QUIPU names the program.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

QUIPU = os.environ.get("QUIPU", "quipu")
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype("<f4")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


class Machine:
    def __init__(self, folder, nodes, workers):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights, self.nodes = read_safetensors(folder / "model.safetensors"), nodes
        c = self.config
        other = [key for key in ("rope_scaling", "attention_bias", "mlp_bias", "sliding_window") if c.get(key)]
        if other or c["model_type"] != "llama":
            sys.exit(f"{folder}: this example runs plain Llamas, found {c['model_type']} with {other}")
        self.heads, self.kv_heads = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
        self.dim = c.get("head_dim") or c["hidden_size"] // self.heads
        self.queues = [sorted((n for n in nodes if n["worker"] == w), key=lambda n: n["place"]) for w in range(workers)]
        self.memory = {}  # by operand: one row, of the token of this pass
        self.cache = {}   # (layer, "k" or "v"): a row of all KV heads for each position

    def run(self, token, position):
        """A pass of one token: workers in turn, each as far as its instruction's needs allow."""
        self.token, self.position, ended, at = token, position, set(), [0] * len(self.queues)
        while len(ended) < len(self.nodes):
            for worker, queue in enumerate(self.queues):
                if at[worker] < len(queue) and ended.issuperset(queue[at[worker]]["needs"]):
                    node = queue[at[worker]]
                    if node["opcode"] != "noop":
                        getattr(self, node["opcode"])(node, **node["operands"])
                    ended.add(node["id"])
                    at[worker] += 1
        return self.memory["logits"]

    def weight(self, node, slot):
        stem = NAMES[slot] if node["layer"] < 0 else f"model.layers.{node['layer']}.{NAMES[slot]}"
        tied = "model.embed_tokens" if slot == "output" and f"{stem}.weight" not in self.weights else stem
        return self.weights[f"{tied}.weight"]

    def view(self, text, size=None):
        """The columns that "attn[0:256]" names; a tensor that is new is made, large enough."""
        name, begin, end = re.fullmatch(r"(\w+)(?:\[(\d+):(\d+)\])?", text).groups()
        if name not in self.memory:
            self.memory[name] = np.zeros(1 << 20, np.float32)
        return self.memory[name][slice(int(begin), int(end)) if begin else slice(size)]

    @staticmethod
    def slice_of(node, count):
        """The units of a node that are this instruction's."""
        if "units" in node:
            return slice(*node["units"])
        part, parts = node["part"]
        return slice(count * part // parts, count * (part + 1) // parts)

    def embedding(self, node, table, out, **_):
        if self.slice_of(node, 1) == slice(0, 1):
            row = self.weight(node, table)[self.token] if table in NAMES else self.view(table, self.config["hidden_size"])
            self.view(out, len(row))[:] = row

    def rms_norm(self, node, x, weight, out):
        w = self.weight(node, weight)
        row = self.view(x, len(w))
        if self.slice_of(node, 1) == slice(0, 1):
            self.view(out, len(w))[:] = row / np.sqrt(np.mean(row * row) + node["params"]["eps"]) * w

    def linear(self, node, x, weight, out, residual=None):
        w = self.weight(node, weight)
        rows = self.slice_of(node, len(w))
        product = w[rows] @ self.view(x, w.shape[1])
        self.view(out, len(w))[rows] = product + (self.view(residual, len(w))[rows] if residual else 0)

    def rope(self, node, q, k, **_):
        half = self.dim // 2
        angle = self.position * self.config.get("rope_theta", 10000.0) ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        heads = [self.view(q).reshape(-1, self.dim), self.view(k).reshape(-1, self.dim)]
        for head in [row for view in heads for row in view][self.slice_of(node, self.heads + self.kv_heads)]:
            a, b = head[:half].copy(), head[half:].copy()
            head[:half], head[half:] = a * cos - b * sin, b * cos + a * sin

    def kv_append(self, node, k, v, **_):
        for name, text in (("k", k), ("v", v)):
            rows = self.cache.setdefault((node["layer"], name), np.zeros((4096, self.kv_heads, self.dim), np.float32))
            heads = self.slice_of(node, self.kv_heads)
            rows[self.position, heads] = self.view(text).reshape(-1, self.dim)[heads]

    def paged_prefill(self, node, q, out, **_):
        keys, values = (self.cache[node["layer"], name][:self.position + 1] for name in "kv")
        queries, result = self.view(q).reshape(-1, self.dim), self.view(out).reshape(-1, self.dim)
        for head in range(self.heads)[self.slice_of(node, self.heads)]:
            kv = head * self.kv_heads // self.heads
            scores = keys[:, kv] @ queries[head] * node["params"]["sm_scale"]
            weights = np.exp(scores - scores.max())
            result[head] = weights @ values[:, kv] / weights.sum()

    def silu_and_mul(self, node, x, out):
        size = self.config["intermediate_size"]
        units, both = self.slice_of(node, size), self.view(x, 2 * size)
        gate, up = both[:size][units], both[size:][units]
        self.view(out)[units] = gate / (1 + np.exp(-gate)) * up


def main(folder, ids, workers="2"):
    tokens = [int(word) for word in ids.split(",")]
    schedule = [QUIPU, "schedule", "-m", folder, "--workers", workers, "--kv-type", "F32", "--linear", "--json"]
    listed = json.loads(subprocess.run(schedule, check=True, capture_output=True).stdout)
    machine = Machine(Path(folder), listed["nodes"], int(workers))
    for position, token in enumerate(tokens):
        logits = machine.run(token, position)
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([QUIPU, "logits", "-m", folder, "--ids", ids, "--kv-type", "F32", "--exec", "reference", "--out",
                        file.name], check=True, capture_output=True)
        expected = np.fromfile(file.name, "<f4").reshape(len(tokens), -1)[-1]
    error = np.abs(logits[:len(expected)] - expected).max()
    print(f"{len(listed['nodes'])} instructions a pass on {workers} workers; likeliest {logits[:len(expected)].argmax()}, "
          f"quipu's {expected.argmax()}; logits differ by {error:.2g} at most")
    return 0 if error < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
