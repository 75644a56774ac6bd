#!/usr/bin/env python3
"""Writes tests/golden/op_forward.inc: what torch computes in float64 for the operators of the
forward pass, on inputs that the suites make by the same formula (golden_value in op_test.h).

    python tests/scripts/op_goldens.py > tests/golden/op_forward.inc
"""

import math

import torch
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def value(seed, *shape):
    i = torch.arange(math.prod(shape), dtype=torch.int64)
    return (((i * 37 + seed * 101) % 251 - 125).double() / 64).reshape(shape)


def write(name, tensor):
    print(f"static const double golden_{name}[] = {{")
    values = [repr(v) if math.isfinite(v) else "-INFINITY" for v in tensor.flatten().tolist()]
    for begin in range(0, len(values), 4):
        print("    " + ", ".join(values[begin : begin + 4]) + ",")
    print("};")


def attention(qo_len, kv_len, seed, heads=4, kv_heads=2, dim=8):
    """Causal, aligned at the bottom right; (qo_len, heads, dim) and (kv_len, kv_heads, dim)."""
    q = value(seed, qo_len, heads, dim).transpose(0, 1)
    k = value(seed + 1, kv_len, kv_heads, dim).transpose(0, 1)
    v = value(seed + 2, kv_len, kv_heads, dim).transpose(0, 1)
    k, v = (x.repeat_interleave(heads // kv_heads, 0) for x in (k, v))
    mask = torch.ones(qo_len, kv_len).tril(kv_len - qo_len).bool()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = (q @ k.transpose(1, 2) / math.sqrt(dim)).masked_fill(~mask, -math.inf)
    lse = torch.logsumexp(scores, -1) / math.log(2)
    return out.transpose(0, 1), lse.transpose(0, 1)


print("/* Written by tests/scripts/op_goldens.py with torch in float64. */")
x, residual, weight = value(1, 3, 20), value(2, 3, 20), value(3, 20)
write("rms_norm", F.rms_norm(x, (20,), weight, 1e-5))
write("add", x + residual)
write("add_rms_norm", F.rms_norm(x + residual, (20,), weight, 1e-5))

x = value(4, 3, 26)
write("silu_and_mul", F.silu(x[:, :13]) * x[:, 13:])

x, weight, bias, residual = value(5, 3, 19), value(6, 7, 19), value(7, 7), value(8, 3, 7)
write("linear", F.linear(x, weight, bias) + residual)

# Rope on 3 tokens at positions 2, 0, 4 of a table of 5; 6 of 8 elements turn.
positions = torch.tensor([2, 0, 4])
q, k, cos_sin = value(9, 3, 2, 8), value(10, 3, 1, 8), value(11, 5, 6)[positions]
cos, sin = cos_sin[:, :3], cos_sin[:, 3:]
neox_q, neox_k = apply_rotary_pos_emb(
    q[None, :, :, :6].transpose(1, 2),
    k[None, :, :, :6].transpose(1, 2),
    torch.cat([cos, cos], -1)[None],
    torch.cat([sin, sin], -1)[None],
)
write("rope_neox_q", torch.cat([neox_q[0].transpose(0, 1), q[:, :, 6:]], -1))
write("rope_neox_k", torch.cat([neox_k[0].transpose(0, 1), k[:, :, 6:]], -1))
turn = torch.complex(cos, sin)[:, None]
for name, x in ("q", q), ("k", k):
    pairs = torch.view_as_complex(x[:, :, :6].reshape(3, -1, 3, 2).contiguous())
    turned = torch.view_as_real(pairs * turn).reshape(3, -1, 6)
    write(f"rope_interleaved_{name}", torch.cat([turned, x[:, :, 6:]], -1))

for name, (out, lse) in (
    ("one", attention(5, 9, 12)),
    ("two", attention(3, 3, 15)),
):
    write(f"attention_{name}", out)
    write(f"attention_{name}_lse", lse)
