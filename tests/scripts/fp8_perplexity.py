#!/usr/bin/env python3
"""What FP8 costs: the perplexity of a Llama model if matrices of layers, and the inputs of their
products, are rounded to E4M3 with a scale for a row or for 128 elements of it.

    python3 tests/scripts/fp8_perplexity.py MODEL.gguf --text wiki.test.raw --quipu build/quipu

Everything else is computed in float32 by PyTorch, weights are first rounded to BF16. Each chunk
counts its second half. Needs torch and gguf."""
import argparse
import subprocess

import torch
from gguf import GGUFReader, dequantize
from torch.nn.functional import pad, scaled_dot_product_attention, silu


def bf16(x):
    return x.to(torch.bfloat16).float()


def f16(x):
    return x.half().float()


def by_rows(x):
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def by_128(x):
    n = x.shape[-1]
    groups = pad(x, (0, -n % 128)).unflatten(-1, (-1, 128))
    return by_rows(groups).flatten(-2)[..., :n]


# Weights, inputs.
FORMS = {
    "BF16": (bf16, bf16),
    "FP8 by rows, F16": (by_rows, f16),
    "FP8 by rows": (by_rows, by_rows),
    "FP8 by 128": (by_128, by_128),
}


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        field = lambda name: reader.fields[f"llama.{name}"].contents()
        self.weights = {
            t.name: bf16(torch.from_numpy(dequantize(t.data, t.tensor_type).copy()))
            for t in reader.tensors
        }
        self.layers = field("block_count")
        self.heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.dim = field("embedding_length") // self.heads
        self.eps, self.theta = field("attention.layer_norm_rms_epsilon"), field("rope.freq_base")

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[name]

    def rope(self, x):
        rates = self.theta ** (-torch.arange(0, self.dim, 2) / self.dim)
        angles = torch.outer(torch.arange(x.shape[0]).float(), rates)[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
        return torch.stack(turned, -1).flatten(-2)

    def logits(self, ids, matrices, rounded):
        product = lambda x, name: rounded(x) @ matrices[name].T
        heads = lambda x: x.unflatten(-1, (-1, self.dim))
        x = self.weights["token_embd.weight"][ids]
        for layer in range(self.layers):
            at = lambda name: f"blk.{layer}.{name}.weight"
            h = self.norm(x, at("attn_norm"))
            q, k = (self.rope(heads(product(h, at(f"attn_{n}")))) for n in "qk")
            k, v = (
                t.repeat_interleave(self.heads // self.kv_heads, 1)
                for t in (k, heads(product(h, at("attn_v"))))
            )
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
            h = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
            x = x + product(h, at("attn_output"))
            h = self.norm(x, at("ffn_norm"))
            h = silu(product(h, at("ffn_gate"))) * product(h, at("ffn_up"))
            x = x + product(h, at("ffn_down"))
        output = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ output.T


def measure(model, chunks, form):
    of_weights, of_inputs = FORMS[form]
    matrices = {n: of_weights(w) for n, w in model.weights.items() if n[:3] == "blk" and w.dim() == 2}
    losses, logits = [], []
    for chunk in chunks:
        rows = model.logits(chunk, matrices, of_inputs)
        half = len(chunk) // 2
        chosen = rows.log_softmax(-1)[half - 1 : -1].gather(1, chunk[half:, None])
        losses.append(-chosen.mean())
        logits.append(rows[half:])
    return torch.stack(losses).mean().exp().item(), torch.cat(logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--quipu", required=True, help="the program, which makes tokens of the text")
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--length", type=int, default=512, help="tokens of a chunk")
    o = parser.parse_args()
    n = o.chunks * o.length
    with open(o.text, encoding="utf-8") as file:
        text = file.read(8 * n)  # enough for n tokens
    ids = subprocess.run([o.quipu, "tokenize", "-m", o.model], input=text, text=True, check=True,
                         capture_output=True).stdout.split()
    chunks = torch.tensor([int(i) for i in ids[:n]]).view(o.chunks, o.length)
    model, exact = Model(o.model), None
    print("| matrices, inputs | perplexity | logits differ, part of their norm | same likeliest |")
    print("|---|---|---|---|")
    for form in FORMS:
        with torch.no_grad():
            perplexity, logits = measure(model, chunks, form)
        exact = logits if exact is None else exact
        differ = ((logits - exact).norm() / exact.norm()).item()
        same = (logits.argmax(-1) == exact.argmax(-1)).float().mean().item()
        print(f"| {form} | {perplexity:.2f} | {differ:.1e} | {100 * same:.1f}% |", flush=True)


if __name__ == "__main__":
    main()
