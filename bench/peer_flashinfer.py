#!/usr/bin/env python3
"""Times quipu's CUDA operators and FlashInfer's on the same shapes, in turn; prints a Markdown table.

    bench/peer_flashinfer.py [--quipu build/quipu] [--rounds 11] [OPERATOR...]

Needs an NVIDIA GPU, PyTorch and the PyPI package flashinfer-python, which compiles its kernels when
they are first called. The shapes are the BF16 workloads of `quipu ops bench`. Both sides are timed
the same way: calls one after the other in a CUDA graph, over copies of their tensors that are larger than
the GPU's caches where a call is not small, medians of rounds. Lengths of sequences in a paged cache
are random on both sides, with the same number of pages.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys

import flashinfer
import torch

BF16, CALLS, COPIES, ROTATE = torch.bfloat16, 64, 32, 256 << 20


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=BF16)


def indptr(lengths):
    return torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def deal(total, n):
    """`total` pages dealt to n sequences, at least one each."""
    borders = sorted(torch.randperm(total - 1)[: n - 1].add(1).tolist())
    return [b - a for a, b in zip([0, *borders], [*borders, total])]


def rms_norm(a):
    x, weight = random(a.n_tokens, a.hidden_size), random(a.hidden_size)
    out = torch.empty_like(x)
    return lambda: flashinfer.norm.rmsnorm(x, weight, out=out), [x, weight, out]


def add_rms_norm(a):
    x, residual = random(a.n_tokens, a.hidden_size), random(a.n_tokens, a.hidden_size)
    weight = random(a.hidden_size)
    return lambda: flashinfer.norm.fused_add_rmsnorm(x, residual, weight), [x, residual, weight]


def silu_and_mul(a):
    x = random(a.n_tokens, 2 * a.intermediate_size)
    out = random(a.n_tokens, a.intermediate_size)
    return lambda: flashinfer.activation.silu_and_mul(x, out=out), [x, out]


def rope(a):
    q = random(a.n_tokens, a.n_heads * a.head_dim)
    k = random(a.n_tokens, a.n_kv_heads * a.head_dim)
    table = torch.rand(a.max_positions, a.rotary_dim, device="cuda")
    positions = torch.arange(a.n_tokens, device="cuda")
    run = flashinfer.rope.apply_rope_with_cos_sin_cache_inplace
    return lambda: run(positions, q, k, a.head_dim, table), [q, k]


def workspace():
    return torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")


def paged_decode(a):
    q = random(a.n_sequences, a.n_heads, a.head_dim)
    cache = tuple(random(a.n_pages, a.page_size, a.n_kv_heads, a.head_dim) for _ in "kv")
    pages = deal(a.n_kv_indices, a.n_sequences)
    indices = torch.randperm(a.n_pages, device="cuda")[: a.n_kv_indices].to(torch.int32)
    last = torch.randint(1, a.page_size + 1, (a.n_sequences,), device="cuda", dtype=torch.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(), "NHD", use_tensor_cores=a.n_heads // a.n_kv_heads >= 4)
    wrapper.plan(indptr(pages), indices, last, a.n_heads, a.n_kv_heads, a.head_dim, a.page_size,
                 q_data_type=BF16, kv_data_type=BF16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, cache, out=out), [q, *cache, out]


def ragged_prefill(a):
    q = random(a.n_tokens, a.n_heads, a.head_dim)
    k, v = (random(a.n_kv_tokens, a.n_kv_heads, a.head_dim) for _ in "kv")
    border = indptr(deal(a.n_tokens, a.n_sequences))
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(border, border, a.n_heads, a.n_kv_heads, a.head_dim, causal=True,
                 q_data_type=BF16, kv_data_type=BF16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, k, v, out=out), [q, k, v, out]


def seconds(make, axes, rounds):
    """Median seconds of a call."""
    call, tensors = make(axes)
    bytes_each = sum(t.numel() * t.element_size() for t in tensors)
    copies = min(COPIES, ROTATE // bytes_each + 1)
    calls = [call] + [make(axes)[0] for _ in range(copies - 1)]
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % copies]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = []
    for _ in range(rounds):
        begin.record()
        for _ in range(3):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / (3 * CALLS))
    return statistics.median(times)


def quipu_results(options, operator):
    """{workload: (kernel, seconds)} of the fastest kernel on each BF16 workload."""
    command = [options.quipu, "ops", "bench", operator, "--device", "cuda", "--json", "-r",
               str(options.rounds)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    fastest = {}
    for row in json.loads(out)["results"]:
        text = row["workload"]
        if ":BF16" not in text or row["status"] != "PASSED":
            continue
        if text not in fastest or row["seconds"] < fastest[text][1]:
            fastest[text] = row["kernel"], row["seconds"]
    return fastest


def main():
    makers = (rms_norm, add_rms_norm, silu_and_mul, rope, paged_decode, ragged_prefill)
    operators = {make.__name__: make for make in makers}
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", choices=[[], *operators],
                        help="only these of: " + ", ".join(operators))
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, flashinfer {flashinfer.__version__}\n")
    print("| operator, kernel | workload | quipu, us | FlashInfer, us | ratio |\n|---|---|---|---|---|")
    for operator in options.operators or operators:
        for text, (kernel, ours) in quipu_results(options, operator).items():
            axes = {name: int(value) for name, value in re.findall(r"\b(\w+)=(\d+)\b", text)}
            name = f"{text.split(':')[0]}, {axes.get('n_tokens', axes.get('n_sequences'))} rows"
            row = f"| {operator}, {kernel} | {name} | {ours * 1e6:.2f} |"
            try:
                theirs = seconds(operators[operator], argparse.Namespace(**axes), options.rounds)
                print(f"{row} {theirs * 1e6:.2f} | {theirs / ours:.2f} |", flush=True)
            except (RuntimeError, ValueError) as error:
                print(f"{row} {type(error).__name__} | |", flush=True)
                print(error, file=sys.stderr)


main()
