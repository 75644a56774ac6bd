#!/usr/bin/env python3
"""Times quipu and vLLM on a GPU, on models with random weights, test by test in turn; prints a Markdown table.

    bench/peer_vllm.py [llama-3.2-1b llama-3.1-8b] [--quipu build/quipu] [--rounds 3] [--json FILE]
                       [--vllm JSON]

Needs one NVIDIA GPU and the PyPI package vllm. vLLM takes long to start, so all models start at once, each in a
process of its own, and are measured one after the other. vLLM runs offline, as it is shipped, but records CUDA
graphs only for the numbers of tokens that are measured; --vllm adds arguments of its class LLM. Both sides keep
weights and KV cache in BF16.

prompts: the time from a call to its first token, of 1 or 8 prompts at once. generation: passes that follow a context
of the given length; vLLM's rate is 128 tokens a sequence divided by the difference between two calls, one of which
generates 128 tokens more. Medians; "ratio" is quipu's rate divided by vLLM's.
"""
import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
SHARED = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_act": "silu",
          "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
          "num_attention_heads": 32, "num_key_value_heads": 8, "bos_token_id": 128000, "eos_token_id": 128001}
SHAPES = {
    "llama-3.2-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
                     "tie_word_embeddings": True, "rope_scaling": {"factor": 32.0, **ROPE}},
    "llama-3.1-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
                     "tie_word_embeddings": False, "rope_scaling": {"factor": 8.0, **ROPE}},
}
TESTS = [{"prompt": n, "sequences": 1} for n in (512, 2048)]
TESTS += [{"context": n, "sequences": sequences} for sequences in (1, 8, 64) for n in (32, 1024)]
TESTS += [{"prompt": 2048, "sequences": 8}]
PASSES, BEFORE = 128, 17  # tokens a sequence that count, and those generated before them


# ---- vLLM: a process that measures the tests which it reads from its standard input -----------------

def open_vllm(shape, folder, more):
    from vllm import LLM
    bytes_each = 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(shape, file)
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": 8192,
                "max_num_seqs": 64, "max_num_batched_tokens": 8192, "enable_prefix_caching": False,
                "disable_log_stats": True, "gpu_memory_utilization": 0.4,
                "kv_cache_memory_bytes": 64 * 1280 * bytes_each,
                "compilation_config": {"cudagraph_capture_sizes": [1, 8, 64, 512]}}
    return LLM(model=folder, **{**settings, **more})


def seconds(llm, sequences, length, tokens):
    from vllm import SamplingParams
    prompts = [{"prompt_token_ids": random.choices(range(1000, 100000), k=length)} for _ in range(sequences)]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    took = time.perf_counter() - start
    assert all(len(answer.outputs[0].token_ids) == tokens for answer in answers)
    return took


def rate(llm, test):
    n, rounds = test["sequences"], test["rounds"]
    if "prompt" in test:
        times = [seconds(llm, n, test["prompt"], 1) for _ in range(2 + 3 * rounds)][2:]
        return n * test["prompt"] / statistics.median(times)
    length = test["context"] - BEFORE + 1
    seconds(llm, n, length, BEFORE)
    times = [seconds(llm, n, length, BEFORE + PASSES) - seconds(llm, n, length, BEFORE)
             for _ in range(rounds)]
    return n * PASSES / statistics.median(times)


def serve_vllm(name, more):
    with tempfile.TemporaryDirectory() as folder:
        llm = open_vllm({**SHARED, **SHAPES[name]}, folder, more)
        print("ANSWER ready", flush=True)
        for line in sys.stdin:
            print("ANSWER", json.dumps(rate(llm, json.loads(line))), flush=True)


def start_vllm(options, name):
    command = [sys.executable, __file__, name, "--serve", "--vllm", json.dumps(options.vllm)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer_of(process):
    """The next answer; vLLM writes other lines too."""
    for line in process.stdout:
        if line.startswith("ANSWER "):
            return line.split(" ", 1)[1]
        sys.stderr.write(line)
    raise SystemExit(f"vLLM ended with status {process.wait()}; its messages are above")


def end(process):
    process.stdin.close()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


def vllm_rate(process, test):
    process.stdin.write(json.dumps(test) + "\n")
    process.stdin.flush()
    return float(answer_of(process))


# ---- quipu ------------------------------------------------------------------------------------------

def quipu_rate(options, name, test):
    command = [options.quipu, "bench", "-m", f"synthetic:{name}:BF16", "--kv-type", "BF16", "--device", "cuda",
               "-r", str(options.rounds), "-o", "json", "--parallel", str(test["sequences"])]
    if "prompt" in test:
        command += ["-p", str(test["prompt"]), "-n", "0"]
    else:
        command += ["-p", "0", "-n", str(PASSES), "-d", str(test["context"])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)[0]["tokens_per_second"]


# ---- both in turn -----------------------------------------------------------------------------------

def name_of(test):
    several = f"{test['sequences']} " if test["sequences"] > 1 else ""
    if "prompt" in test:
        return f"{several}prompt{'s' if several else ''} of {test['prompt']:,}"
    return f"{test['sequences']} sequence{'s' if several else ''} at {test['context']:,}"


def compare(options, name, process, rows):
    for test in TESTS:
        theirs = vllm_rate(process, {**test, "rounds": options.rounds})
        ours = quipu_rate(options, name, test)
        rows.append({"model": name, **test, "quipu": ours, "vllm": theirs})
        print(f"| {name} | {name_of(test)} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} |", flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(rows, file, indent=1)


def arguments(text):
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="*", default=list(SHAPES), metavar="MODEL", help=", ".join(SHAPES))
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the rows into this file, too")
    parser.add_argument("--vllm", type=arguments, default={}, metavar="JSON", help="arguments of vLLM's class LLM")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in SHAPES]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; there are " + ", ".join(SHAPES))
    if not importlib.util.find_spec("vllm"):
        parser.error("the Python package vllm is not installed: pip install vllm")
    if not options.serve and not shutil.which(options.quipu):
        parser.error(f"there is no program {options.quipu}; build it with ./dev build, or name it by --quipu")
    if options.serve:
        serve_vllm(options.models[0], options.vllm)
        return
    processes = {name: start_vllm(options, name) for name in options.models}
    print("| model | test | quipu, tokens/s | vLLM, tokens/s | ratio |\n|---|---|---|---|---|")
    rows = []
    try:
        for process in processes.values():
            answer_of(process)
        for name, process in processes.items():
            compare(options, name, process, rows)
            end(process)
    finally:
        for process in processes.values():
            end(process)


if __name__ == "__main__":
    main()
