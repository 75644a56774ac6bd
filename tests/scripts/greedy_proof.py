#!/usr/bin/env python3
"""Compares the tokens that a GPU made with the CPU's references, position by position.

    greedy_proof.py make FILE MODEL... [-n 1000] [--prompt TEXT] [-- OPTION...]
    greedy_proof.py hold FILE [-n TOKENS] [--only TEXT] [-- OPTION...]

`make` runs the megakernel, which makes each model's likeliest tokens after a prompt, and appends one line
of JSON for each model to FILE. The prompt is read eight tokens at a time, because more tokens at a time run
on the tensor cores, with attention's queries rounded to 16 bits. `hold` reads FILE, possibly on another
machine, and computes the references' logits after every one of those tokens. If the likeliest token is
always the one in FILE, the references' greedy tokens are the same from beginning to end. Where it is not,
both tokens and the margin between their logits are printed, and the comparison continues with the GPU's
tokens. A margin up to --tie counts as a tie within rounding. Options after `--` are passed to quipu.
"""
import argparse
import json
import subprocess
import sys
import time

PROMPT = ",".join(str((i * 97 + 5) % 500) for i in range(21))


def quipu(arguments, command, options):
    words = [arguments.quipu, command, *options, *arguments.options]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout


def make(arguments):
    with open(arguments.file, "a", encoding="utf-8") as file:
        for model in arguments.models:
            begin = time.time()
            prompt = arguments.prompt or (PROMPT if model.startswith("synthetic:") else "Once upon")
            found = json.loads(quipu(arguments, "run", [
                "-m", model, "-p", prompt, "-n", str(arguments.n), "--temp", "0", "--ignore-eos",
                "--json", "--raw", "--device", "cuda", "--exec", "megakernel", "--eos-interval", "128",
                "--chunk", "8"]))
            line = {"model": model, "prompt": found["prompt_tokens"], "tokens": found["tokens"]}
            print(json.dumps(line), file=file, flush=True)
            rate = found["generate_seconds"] / len(found["tokens"]) * 1e6
            print(f"{model}: {len(found['tokens'])} tokens, {rate:.1f} us each,"
                  f" {time.time() - begin:.1f} s in all", flush=True)


def hold_model(arguments, line):
    """Whether every token is the references' choice, or parts from it by no more than a tie."""
    prompt, tokens = line["prompt"], line["tokens"][: arguments.n]
    ids = prompt + tokens[:-1]
    begin = time.time()
    rows = json.loads(quipu(arguments, "logits", [
        "-m", line["model"], "--ids", ",".join(map(str, ids)), "--top", "2", "--json",
        "-c", str(len(ids)), "--device", "cpu", "--exec", "reference"]))["positions"][len(prompt) - 1:]
    partings, closest = [], float("inf")
    for position, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        best, second = row["top"]
        margin = best["logit"] - second["logit"]
        if token == best["id"]:
            closest = min(closest, margin)
        else:
            partings.append((position, token, best["id"],
                             margin if token == second["id"] else float("inf")))
    print(f"{line['model']}: {len(tokens) - len(partings)} of {len(tokens)} tokens are the"
          f" references', the closest by {closest:.2g} ({time.time() - begin:.0f} s)")
    for position, found, expected, margin in partings:
        print(f"  token {position}: {found}, the references' {expected} by {margin:.2g}"
              f"{' (a tie)' if margin <= arguments.tie else ''}")
    sys.stdout.flush()
    return all(parting[3] <= arguments.tie for parting in partings)


def hold(arguments):
    with open(arguments.file, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    held = [hold_model(arguments, line) for line in lines if arguments.only in line["model"]]
    return 0 if held and all(held) else 1


def main():
    words, options = sys.argv[1:], []
    if "--" in words:
        words, options = words[: words.index("--")], words[words.index("--") + 1:]
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "hold"])
    parser.add_argument("file")
    parser.add_argument("models", nargs="*")
    parser.add_argument("-n", type=int, default=1000, help="tokens of each model")
    parser.add_argument("--prompt", help="of make: text, or ids where there is no vocabulary")
    parser.add_argument("--only", default="", help="of hold: models whose name contains this")
    parser.add_argument("--tie", type=float, default=1e-3, help="the margin of a tie")
    parser.add_argument("--quipu", default="build/quipu")
    arguments = parser.parse_intermixed_args(words)
    arguments.options = options
    sys.exit({"make": make, "hold": hold}[arguments.what](arguments))


main()
