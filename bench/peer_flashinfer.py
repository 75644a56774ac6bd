#!/usr/bin/env python3
"""Times quipu's CUDA operators and FlashInfer's on the same workloads, in turn; prints Markdown tables.

    bench/peer_flashinfer.py [--quipu build/quipu] [--rounds 11] [--json FILE] [OPERATOR...]

Needs an NVIDIA GPU, PyTorch and the PyPI package flashinfer-python, which compiles its kernels when
they are first called (in parallel: MAX_JOBS). Both sides are timed the same way: calls one after the
other in a CUDA graph, over copies of their tensors that are larger than the GPU's caches, medians of
rounds. Sequences have equal numbers of pages or tokens, and last pages of random lengths, on both
sides. A row's quipu side alone: `quipu ops bench OPERATOR --device cuda --variant best -w WORKLOAD`.
"""
import argparse
import concurrent.futures
import json
import re
import statistics
import subprocess
import sys

import flashinfer
import torch

BF16, CALLS, COPIES, ROTATE = torch.bfloat16, 64, 32, 256 << 20
PAGE = 16
HEADS = [(32, 8, 64), (32, 8, 128), (64, 8, 64), (64, 8, 128)]  # n_heads, n_kv_heads, head_dim


# ---- the workloads, as `quipu ops bench -w` reads them --------------------------------------------

def norm_workloads(tensors):
    shapes = [(n, 2048) for n in (1, 512)] + [(n, 4096) for n in (1, 16, 128, 2048)]
    shapes += [(n, 8192) for n in (1, 64, 512)]
    return [f"n_tokens={n} hidden_size={h} {tensors}" for n, h in shapes]


def silu_workloads():
    return [f"n_tokens={n} intermediate_size={size} x:BF16 out:BF16"
            for size in (8192, 14336) for n in (1, 16, 128, 512, 4096)]


def rope_workloads():
    return [f"n_tokens={n} n_heads={heads} n_kv_heads=8 head_dim={dim} rotary_dim={dim} "
            f"max_positions=8192 q:BF16 k:BF16"
            for heads, dim in ((32, 64), (32, 128), (16, 128)) for n in (1, 16, 512, 4096)]


def heads_text(heads):
    return "n_heads={} n_kv_heads={} head_dim={}".format(*heads)


def decode_workloads():
    sizes = [(1, 128), (1, 1024), (1, 8192), (1, 32768), (16, 512), (16, 4096), (64, 1024), (256, 128),
             (256, 512)]  # sequences, context
    return [f"n_sequences={n} {heads_text(heads)} n_pages={n * length // PAGE} page_size={PAGE} "
            f"n_kv_indices={n * length // PAGE} q:BF16 k_cache:BF16 v_cache:BF16 out:BF16 lse:-"
            for heads in HEADS for n, length in sizes]


def ragged_workloads():
    sizes = [(512, 1), (2048, 1), (8192, 1), (2048, 8), (4096, 4)]  # tokens, sequences
    return [f"n_tokens={n} n_kv_tokens={n} n_sequences={parts} {heads_text(heads)} "
            f"q:BF16 k:BF16 v:BF16 out:BF16 lse:-" for heads in HEADS for n, parts in sizes]


def paged_prefill_workloads():
    sizes = [(512, 1, 512), (512, 1, 4096), (1024, 4, 2048), (2048, 1, 2048)]  # and context
    return [f"n_tokens={n} n_sequences={parts} {heads_text(heads)} n_pages={parts * length // PAGE} "
            f"page_size={PAGE} n_kv_indices={parts * length // PAGE} q:BF16 k_cache:BF16 "
            f"v_cache:BF16 out:BF16 lse:-" for heads in HEADS for n, parts, length in sizes]


def merge_workloads():
    return [f"n_tokens={n} n_heads=32 head_dim={dim} v_a:BF16 v_b:BF16 v:BF16"
            for n, dim in ((1, 64), (1, 128), (16, 128), (128, 128), (4096, 128))]


def sampling_workloads():
    rest = "temperatures:- top_ks:- top_ps:- min_ps:- candidates:-"
    return [f"n_rows={n} vocab_size=128256 {limits} {rest}" for n in (1, 16, 64)
            for limits in ("top_k=50", "top_p=0.9", "top_k=50 top_p=0.9", "top_k=50 top_p=0.9 top_k_first=1")]


# ---- FlashInfer's side: a call, and its tensors ---------------------------------------------------

def random(*shape, dtype=BF16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def borders(total, n):
    return torch.arange(0, total + 1, total // n, device="cuda", dtype=torch.int32)


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


def merge_state(a):
    v_a, v_b = (random(a.n_tokens, a.n_heads, a.head_dim) for _ in "ab")
    s_a, s_b = (random(a.n_tokens, a.n_heads, dtype=torch.float32) for _ in "ab")
    return lambda: flashinfer.merge_state(v_a, s_a, v_b, s_b), [v_a, v_b, v_b, s_a, s_b]


def sampling(a):
    logits = random(a.n_rows, a.vocab_size, dtype=torch.float32)
    seed, offset = (torch.full((1,), i, device="cuda", dtype=torch.int64) for i in (1, 0))
    counter = {"seed": seed, "offset": offset}
    s = flashinfer.sampling
    if a.top_k_first:
        def call():
            return s.top_k_top_p_sampling_from_logits(logits, a.top_k, a.top_p, **counter)
    elif a.top_k and a.top_p:
        def call():
            return s.top_k_top_p_sampling_from_probs(s.softmax(logits), a.top_k, a.top_p,
                                                     filter_apply_order="joint", **counter)
    elif a.top_k:
        def call():
            return s.top_k_sampling_from_probs(s.softmax(logits), a.top_k, **counter)
    else:
        def call():
            return s.top_p_sampling_from_probs(s.softmax(logits), a.top_p, **counter)
    return call, [logits]


def workspace(shared=[]):
    """One for all wrappers: their calls follow one another."""
    if not shared:
        shared.append(torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"))
    return shared[0]


def paged_cache(a):
    """The caches, indptr, indices and last_page_len of the sequences."""
    cache = tuple(random(a.n_pages, a.page_size, a.n_kv_heads, a.head_dim) for _ in "kv")
    indices = torch.randperm(a.n_pages, device="cuda")[: a.n_kv_indices].to(torch.int32)
    last = torch.randint(1, a.page_size + 1, (a.n_sequences,), device="cuda", dtype=torch.int32)
    return cache, borders(a.n_kv_indices, a.n_sequences), indices, last


def paged_decode(a):
    q = random(a.n_sequences, a.n_heads, a.head_dim)
    cache, border, indices, last = paged_cache(a)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(), "NHD", use_tensor_cores=a.n_heads // a.n_kv_heads >= 4)
    wrapper.plan(border, indices, last, a.n_heads, a.n_kv_heads, a.head_dim, a.page_size,
                 q_data_type=BF16, kv_data_type=BF16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, cache, out=out), [q, *cache, out]


def ragged_prefill(a):
    q = random(a.n_tokens, a.n_heads, a.head_dim)
    k, v = (random(a.n_kv_tokens, a.n_kv_heads, a.head_dim) for _ in "kv")
    border = borders(a.n_tokens, a.n_sequences)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(border, border, a.n_heads, a.n_kv_heads, a.head_dim, causal=True,
                 q_data_type=BF16, kv_data_type=BF16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, k, v, out=out), [q, k, v, out]


def paged_prefill(a):
    q = random(a.n_tokens, a.n_heads, a.head_dim)
    cache, border, indices, last = paged_cache(a)
    if a.n_tokens == a.n_kv_indices * a.page_size:
        last.fill_(a.page_size)  # every position is a new token
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
    wrapper.plan(borders(a.n_tokens, a.n_sequences), border, indices, last, a.n_heads, a.n_kv_heads,
                 a.head_dim, a.page_size, causal=True, q_data_type=BF16, kv_data_type=BF16)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, cache, out=out), [q, *cache, out]


# Kernels that compile quickly come first: the others compile meanwhile.
OPERATORS = {
    merge_state: merge_workloads(),
    rope: rope_workloads(),
    silu_and_mul: silu_workloads(),
    rms_norm: norm_workloads("x:BF16 weight:BF16 out:BF16"),
    add_rms_norm: norm_workloads("x:BF16 residual:BF16 weight:BF16"),
    sampling: sampling_workloads(),
    paged_decode: decode_workloads(),
    ragged_prefill: ragged_workloads(),
    paged_prefill: paged_prefill_workloads(),
}


# ---- timing ---------------------------------------------------------------------------------------

def axes_of(text):
    found = {name: float(value) if "." in value else int(value)
             for name, value in re.findall(r"\b(\w+)=([\d.]+)", text)}
    return argparse.Namespace(**{"top_k": 0, "top_p": 0, "top_k_first": 0, **found})


def compile_kernels(make, text):
    """Calls the operator once, which compiles what it needs."""
    call, _ = make(axes_of(text))
    call()
    torch.cuda.synchronize()


def start_compiling(pool, operators):
    """{operator: futures}. Attention has kernels of its own for each head_dim."""
    futures = {}
    for make in operators:
        first = {}
        for text in OPERATORS[make]:
            first.setdefault(getattr(axes_of(text), "head_dim", 0), text)
        futures[make] = [pool.submit(compile_kernels, make, text) for text in first.values()]
    return futures


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
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may compile
        for i in range(CALLS):
            calls[i % copies]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    times = []
    for _ in range(rounds):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / CALLS)
    return statistics.median(times)


def quipu_seconds(options, operator, text):
    """The kernel that quipu chooses for a workload, and its median seconds a call."""
    command = [options.quipu, "ops", "bench", operator, "--device", "cuda", "--variant", "best", "--json",
               "-r", str(options.rounds), "-w", text]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = json.loads(done.stdout)["results"] if done.stdout.startswith("{") else []
    if done.returncode or not rows or rows[0]["status"] != "PASSED":
        raise RuntimeError(f"{' '.join(command)}: {rows or done.stderr}")
    return rows[0]["kernel"], rows[0]["seconds"]


def short(text):
    """The workload without what all rows of its operator share."""
    text = re.sub(r"\b(page_size|n_kv_tokens|n_pages|max_positions|rotary_dim|vocab_size)=\d+ ?", "", text)
    return " ".join(word for word in text.split() if "=" in word)


def compare(options, make, text):
    """Prints the row; returns it."""
    operator = make.__name__
    kernel, ours = quipu_seconds(options, operator, text)
    theirs = seconds(make, axes_of(text), options.rounds)
    torch.cuda.empty_cache()
    print(f"| {operator} | {short(text)} | {kernel} | {ours * 1e6:.2f} | {theirs * 1e6:.2f} | "
          f"{theirs / ours:.2f} |", flush=True)
    return {"operator": operator, "workload": text, "kernel": kernel, "quipu": ours, "flashinfer": theirs}


def summarize(rows):
    print("\n| operator | rows | least | median | greatest | behind |\n|---|---|---|---|---|---|")
    groups = {row["operator"]: [] for row in rows}
    for row in rows:
        groups[row["operator"]].append(row["flashinfer"] / row["quipu"])
    if len(groups) > 1:
        groups["all"] = [ratio for ratios in groups.values() for ratio in ratios]
    for name, ratios in groups.items():
        print(f"| {name} | {len(ratios)} | {min(ratios):.2f} | {statistics.median(ratios):.2f} | "
              f"{max(ratios):.2f} | {sum(ratio < 1 for ratio in ratios)} |")


def main():
    names = {make.__name__: make for make in OPERATORS}
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("operators", nargs="*", metavar="OPERATOR", help="only these of: " + ", ".join(names))
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", metavar="FILE", help="write the rows into this file, too")
    options = parser.parse_args()
    unknown = [name for name in options.operators if name not in names]
    if unknown:
        parser.error(f"unknown operator {unknown[0]}; there are " + ", ".join(names))
    operators = [names[name] for name in options.operators] or list(OPERATORS)
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, flashinfer {flashinfer.__version__}, torch {torch.__version__}\n")
    print("| operator | workload | kernel | quipu, us | FlashInfer, us | ratio |\n|---|---|---|---|---|---|")
    rows = []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = start_compiling(pool, operators)
        for make in operators:
            for future in futures[make]:
                future.exception()  # a row that needs it says so again
            for text in OPERATORS[make]:
                try:
                    rows.append(compare(options, make, text))
                except Exception as error:
                    print(f"| {make.__name__} | {short(text)} | {type(error).__name__} | | | |", flush=True)
                    print(str(error)[-2000:], file=sys.stderr)
            if options.json:
                with open(options.json, "w") as file:
                    json.dump(rows, file, indent=1)
    summarize(rows)


main()
