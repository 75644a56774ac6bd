#!/usr/bin/env python3
"""Times quipu and llama.cpp (the PyPI package llama-cpp-python) on the same GGUF file, in turn.

    bench/peer_llama_cpp.py MODEL.gguf [--quipu build/quipu] [-p 512] [-n 64] [-t 2] [--rounds 3] [--cpu]

Every round runs one after the other, each in a process of its own, so that a drift of the machine's
speed affects both; medians over the rounds are printed, with the ratio. pp: one prompt of N tokens;
tg: N forward passes of one token. With --cpu rates are per second of processor time, which on a busy
machine says more than the clock, if there is one thread. llama.cpp's extra buffer types (AMX) are off, because its AMX code does not
request the tile registers from Linux and ends with a signal.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def time_llama_cpp(model, n_prompt, n_generate, threads, clock):
    import llama_cpp
    from llama_cpp import llama_cpp as low

    low.llama_backend_init()
    params = low.llama_model_default_params()
    if hasattr(params, "use_extra_bufts"):
        params.use_extra_bufts = False
    loaded = low.llama_model_load_from_file(model.encode(), params)
    context_params = low.llama_context_default_params()
    context_params.n_ctx = max(n_prompt, n_generate) + 16
    context_params.n_batch = max(n_prompt, 1)
    context_params.n_threads = context_params.n_threads_batch = threads
    context = low.llama_init_from_model(loaded, context_params)
    n_vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(loaded))
    ids = [(i * 7919 + 1) % n_vocab for i in range(max(n_prompt, n_generate))]

    def clear():
        low.llama_memory_clear(low.llama_get_memory(context), True)

    def evaluate(tokens):
        array = (low.llama_token * len(tokens))(*tokens)
        if low.llama_decode(context, low.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit("llama.cpp failed to evaluate")
        low.llama_synchronize(context)

    speeds = {}
    for name, run in (("pp", lambda: evaluate(ids[:n_prompt])),
                      ("tg", lambda: [evaluate([i]) for i in ids[:n_generate]])):
        count = n_prompt if name == "pp" else n_generate
        clear()
        evaluate(ids[:min(count, 8)])
        clear()
        start = clock()
        run()
        speeds[name] = count / (clock() - start)
    return {"version": llama_cpp.__version__, **speeds}


def quipu_bench(quipu, model, n_prompt, n_generate, threads, runs):
    """Its rows, and the processor time of the whole process without the system's part."""
    before = os.times()
    out = subprocess.run([quipu, "bench", "-m", model, "-p", str(n_prompt), "-n", str(n_generate),
                          "-t", str(threads), "-r", str(runs), "-o", "json"],
                         check=True, capture_output=True, text=True).stdout
    after = os.times()
    return json.loads(out), after.children_user - before.children_user


def time_quipu(quipu, model, n_prompt, n_generate, threads, by_cpu):
    if not by_cpu:
        rows, _ = quipu_bench(quipu, model, n_prompt, n_generate, threads, 1)
        return {row["test"][:2]: row["tokens_per_second"] for row in rows}
    speeds = {}
    for name, sizes in (("pp", (n_prompt, 0)), ("tg", (0, n_generate))):
        once, thrice = (quipu_bench(quipu, model, *sizes, threads, runs)[1] for runs in (1, 3))
        speeds[name] = 2 * sum(sizes) / (thrice - once)
    return speeds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="rates per second of processor time")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print("RESULT", json.dumps(time_llama_cpp(
            options.model, options.p, options.n, options.t,
            (lambda: os.times().user) if options.cpu else time.perf_counter)))
        return
    rounds = {"quipu": [], "llama.cpp": []}
    for _ in range(options.rounds):
        rounds["quipu"].append(time_quipu(options.quipu, options.model, options.p, options.n,
                                          options.t, options.cpu))
        command = [sys.executable, __file__, options.model, "--peer", "-p", str(options.p), "-n",
                   str(options.n), "-t", str(options.t)] + ["--cpu"] * options.cpu
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result = next(line for line in lines.splitlines() if line.startswith("RESULT"))
        rounds["llama.cpp"].append(json.loads(result.split(" ", 1)[1]))
    print(f"llama-cpp-python {rounds['llama.cpp'][0]['version']}, {options.t} threads, medians of "
          f"{options.rounds} rounds in turn, tokens/s" + (" of processor time" if options.cpu else ""))
    for name, count in (("pp", options.p), ("tg", options.n)):
        own = statistics.median(r[name] for r in rounds["quipu"])
        peer = statistics.median(r[name] for r in rounds["llama.cpp"])
        print(f"{name}{count}: quipu {own:.1f}, llama.cpp {peer:.1f}, ratio {own / peer:.2f}")


if __name__ == "__main__":
    main()
