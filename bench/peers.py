#!/usr/bin/env python3
"""Times quipu and other engines on the CPU, on the same GGUF files in turn; prints a Markdown table with ratios.

    bench/peers.py MODEL.gguf... [--quipu build/quipu] [--llama-bench PATH]... [-t 2,1] [-p 512]
                   [-n 128] [--rounds 3] [--budget 850] [--warm-up] [--load-once]

Engines: quipu; llama.cpp through the PyPI package llama-cpp-python, if it is installed; and each given
llama-bench, a build of llama.cpp or of ik_llama.cpp (which also runs with -rtr 1: weights repacked at run
time). `quipu convert` writes the files.

Each measurement is a process of its own, engines in turn, so that a drift of the machine's speed
affects all. Rounds go over all models, first with the first number of threads; medians are printed. A
measurement does not start if it would end after the budget (seconds), judged by the last one of its kind;
so files and thread counts that are given first have more rounds. With --load-once a llama-bench measures all
numbers of threads in one process, because it loads a large file for longer than it measures. "ratio" is quipu's speed divided by the
fastest other's. Peak memory is that of the process over all rounds, with the pages of the file that it maps.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(command):
    """(stdout, peak bytes) of a process."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if child.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: status {child.returncode}")
        return out.read(), usage.ru_maxrss * 1024


def one_by_one(measure):
    """Of an engine that measures one number of threads a process."""
    def measure_each(options, model, counts):
        found = {threads: measure(options, model, threads) for threads in counts}
        return ({threads: speeds for threads, (speeds, _) in found.items()},
                max(peak for _, peak in found.values()))
    return measure_each


@one_by_one
def time_quipu(options, model, threads):
    out, peak = run([options.quipu, "bench", "--device", "cpu", "-m", model, "-p", str(options.p),
                     "-n", str(options.n), "-t", str(threads), "-r", "1", "-o", "json"])
    speeds = {row["test"][:2]: row["tokens_per_second"] for row in json.loads(out)}
    return speeds, peak


@one_by_one
def time_llama_cpp(options, model, threads):
    helper = Path(__file__).with_name("peer_llama_cpp.py")
    out, peak = run([sys.executable, str(helper), model, "--peer", "-p", str(options.p), "-n",
                     str(options.n), "-t", str(threads)])
    line = next(line for line in out.splitlines() if line.startswith("RESULT"))
    result = json.loads(line.split(" ", 1)[1])
    return {"pp": result["pp"], "tg": result["tg"]}, peak


def time_llama_bench(binary, extra):
    def measure(options, model, counts):
        out, peak = run([binary, "-m", model, "-p", str(options.p), "-n", str(options.n), "-t",
                         ",".join(map(str, counts)), "-r", "1", "-o", "json", *extra])
        speeds = {threads: {} for threads in counts}
        for row in json.loads(out[out.index("["):]):
            speeds[row["n_threads"]]["tg" if row["n_gen"] else "pp"] = row["avg_ts"]
        return speeds, peak
    return measure


def list_engines(options):
    engines = {"quipu": time_quipu}
    try:
        import llama_cpp
        engines[f"llama-cpp-python {llama_cpp.__version__}"] = time_llama_cpp
    except ImportError:
        pass
    for binary in options.llama_bench:
        name = Path(binary).resolve().parts[-4] if len(Path(binary).resolve().parts) > 4 else binary
        text = subprocess.run([binary, "--help"], capture_output=True, text=True)
        help_text = text.stdout + text.stderr
        cold = ["--no-warmup"] if "--no-warmup" in help_text else ["-w", "0"]
        if options.warm_up:
            cold = []
        engines[name] = time_llama_bench(binary, cold)
        if "-rtr" in help_text:
            engines[name + ", repacked"] = time_llama_bench(binary, [*cold, "-rtr", "1"])
    return engines


def measure_all(options, engines):
    """{(model, threads, engine): [(speeds, peak)]}"""
    results, seconds, begin = {}, {}, time.monotonic()
    groups = [options.t] if options.load_once else [[threads] for threads in options.t]
    for number in range(options.rounds):
        for counts in groups:
            for model in options.models:
                for name, engine in engines.items():
                    key = model, counts[0], name
                    left = options.budget - (time.monotonic() - begin)
                    if left <= 0:
                        return results
                    if left < seconds.get(key, 0):
                        continue
                    start = time.monotonic()
                    found = {}
                    try:
                        found, peak = engine(options, model, counts)
                    except (RuntimeError, ValueError) as error:
                        print(f"{name}, {Path(model).name}: {error}", file=sys.stderr)
                    seconds[key] = time.monotonic() - start
                    for threads, speeds in found.items():
                        results.setdefault((model, threads, name), []).append((speeds, peak))
                        rates = ", ".join(f"{test} {rate:.1f}" for test, rate in speeds.items())
                        print(f"round {number + 1}: {Path(model).name}, {threads} threads, {name}: "
                              f"{rates} ({seconds[key]:.0f} s)", file=sys.stderr)
    return results


def print_table(options, engines, results):
    columns = list(engines)
    print("| file | threads | test | " + " | ".join(columns) + " | ratio |")
    print("|---|---|---|" + "---|" * (len(columns) + 1))
    for model in options.models:
        for threads in options.t:
            for test, count in (("pp", options.p), ("tg", options.n)):
                found = {}
                for name in columns:
                    runs = [s[test] for s, _ in results.get((model, threads, name), []) if test in s]
                    if runs:
                        found[name] = statistics.median(runs)
                peers = [speed for name, speed in found.items() if name != "quipu"]
                ratio = f"{found['quipu'] / max(peers):.2f}" if peers and "quipu" in found else ""
                cells = [f"{found[name]:.1f}" if name in found else "" for name in columns]
                print(f"| {Path(model).name} | {threads} | {test}{count} | {' | '.join(cells)} | "
                      f"{ratio} |")
        cells = []
        for name in columns:
            peaks = [p for t in options.t for _, p in results.get((model, t, name), [])]
            cells.append(f"{max(peaks) / 1e6:.0f}" if peaks else "")
        size = os.path.getsize(model) / 1e6
        print(f"| {Path(model).name}, {size:.0f} MB | | peak MB | {' | '.join(cells)} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--llama-bench", action="append", default=[], metavar="PATH")
    parser.add_argument("-t", default="2,1", type=lambda text: [int(t) for t in text.split(",")])
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load-once", action="store_true", help="all -t in one llama-bench")
    parser.add_argument("--warm-up", action="store_true", help="let llama-bench run once before")
    parser.add_argument("--budget", type=float, default=850)
    options = parser.parse_args()
    missing = [model for model in options.models if not os.path.isfile(model)]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    engines = list_engines(options)
    print_table(options, engines, measure_all(options, engines))


if __name__ == "__main__":
    main()
