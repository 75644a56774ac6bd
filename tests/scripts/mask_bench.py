#!/usr/bin/env python3
"""MaskBench (guidance-ai/jsonschemabench, folder maskbench/data): whether a form takes the valid texts of each schema
and leaves out the invalid ones, and how long forms and masks take; of quipu, of llguidance, or of both.

    pip install llguidance
    python3 tests/scripts/mask_bench.py MASKBENCH/data TOKENIZER [--tool build-test/tests/tool_grammar]
        [--engine quipu|llguidance ...] [--every N [--first K]] [--save FILE] [--read FILE ...] [--list KIND]

--every N takes each Nth schema, from the Kth on; --read adds the results that other runs have saved.

TOKENIZER is a folder with a tokenizer.json. KIND lists schemas: refused, rejects, closed, accepts or slow. "closed": valid texts are
left out, because an object with "properties" and without "additionalProperties" has no others here; with that keyword they are in.
"""
import argparse
import collections
import json
import re
import subprocess
import sys
import time
from pathlib import Path


def read(data, first, every):
    for path in sorted(Path(data).glob("*.json"))[first::every]:
        whole = json.loads(path.read_text())
        tests = whole.get("tests", [])
        texts = [json.dumps(t["data"], ensure_ascii=False) for t in tests]
        yield path.stem, whole["schema"], texts, [bool(t["valid"]) for t in tests]


class Ours:
    def __init__(self, tool, tokenizer):
        self.process = subprocess.Popen([tool, tokenizer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, texts, valid):
        first = next((t for t, v in zip(texts, valid) if v), None)
        request = {"schema": schema, "accept": texts, "cold": True, **({"measure": first} if first is not None else {})}
        began = time.monotonic()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        result = {"seconds": time.monotonic() - began}
        if "error" in answer:
            return {**result, "error": answer["error"]}
        times = {"open": answer["open"] / 1e6} if "open" in answer else {}
        if times and "unmeasured" not in answer:
            times.update(masks=answer["first"][0] / 1e6, longest=answer["first"][1] / 1e6, tokens=answer["tokens"])
        return {**result, **times, "accepted": answer["accepted"]}


class Llguidance:
    def __init__(self, tokenizer):
        import llguidance
        self.tokenizer = llguidance.LLTokenizer(str(Path(tokenizer) / "tokenizer.json"))
        self.matcher, self.grammar = llguidance.LLMatcher, llguidance.grammar_from

    def ask(self, schema, texts, valid):
        began = time.monotonic()
        matcher = self.matcher(self.tokenizer, self.grammar("json_schema", json.dumps(schema)), log_level=0)
        if matcher.is_error():
            return {"error": matcher.get_error()}
        matcher.compute_bitmask()
        result = {"open": time.monotonic() - began, "accepted": []}
        for text, right in zip(texts, valid):
            result["accepted"].append(self.walk(matcher.deep_copy(), text, result if right and "masks" not in result else None))
        return result

    def walk(self, matcher, text, times):
        tokens, spent = self.tokenizer.tokenize_str(text), []
        for token in tokens:
            began = time.monotonic()
            if times is not None:
                matcher.compute_bitmask()
            spent.append(time.monotonic() - began)
            if not matcher.consume_token(token):
                return False
        if times is not None:
            times.update(masks=sum(spent) / max(len(spent), 1), longest=max(spent, default=0), tokens=len(tokens))
        return matcher.is_accepting()


def opened(schema):
    """The same with additionalProperties where a schema says nothing of them."""
    if isinstance(schema, list):
        return [opened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {k: v if k in ("enum", "const", "required") else opened(v) for k, v in schema.items()}
    names = isinstance(copy.get("properties"), dict) or isinstance(copy.get("patternProperties"), dict)
    return {**copy, "additionalProperties": True} if names and "additionalProperties" not in copy else copy


def rejects(result, valid):
    return (False, True) in zip(result.get("accepted", []), valid)


def kinds(result, valid):
    if "error" in result:
        return {"refused"}
    found = {"accepts"} if (True, False) in zip(result["accepted"], valid) else set()
    return found | ({"closed" if result.get("closed") else "rejects"} if rejects(result, valid) else set())


def summary(name, results):
    count = collections.Counter(kind for r, valid in results.values() for kind in kinds(r, valid) or {"right"})
    print(f"{name}: {len(results)} schemas, " + ", ".join(f"{k} {count[k]}" for k in ("right", "refused", "closed", "rejects", "accepts")))
    for key in ("open", "masks", "longest"):
        values = sorted(r[key] for r, _ in results.values() if key in r)
        if values:
            at = lambda p: values[min(int(p * len(values)), len(values) - 1)] * 1e6
            print(f"  {key:8} us: p50 {at(.5):.0f}, p90 {at(.9):.0f}, p99 {at(.99):.0f}, most {values[-1] * 1e6:.0f}")
    refusals = collections.Counter(re.sub(r"#\S*?: ", "", re.sub(r'"[^"]*[^a-zA-Z"][^"]*"', '"..."', r["error"]))[:100]
                                   for r, _ in results.values() if "error" in r)
    for reason, n in refusals.most_common(40):
        print(f"  {n:6} {reason}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("tokenizer", nargs="?")
    parser.add_argument("--tool", default="build-test/tests/tool_grammar")
    parser.add_argument("--engine", action="append", choices=("quipu", "llguidance"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--save")
    parser.add_argument("--read", action="append", default=[])
    parser.add_argument("--list", choices=("refused", "rejects", "closed", "accepts", "slow"))
    args = parser.parse_args()
    makers = {"quipu": lambda: Ours(args.tool, args.tokenizer), "llguidance": lambda: Llguidance(args.tokenizer)}
    engines = {name: makers[name]() for name in args.engine or ["quipu"]} if args.data else {}
    results = {name: {} for name in engines}
    for path in args.read:
        for name, found in json.loads(Path(path).read_text()).items():
            results.setdefault(name, {}).update(found)
    for stem, schema, texts, valid in read(args.data, args.first, args.every) if engines else []:
        for name, engine in engines.items():
            result = engine.ask(schema, texts, valid)
            if rejects(result, valid):
                again = engine.ask(opened(schema), texts, valid)
                result["closed"] = "error" not in again and not rejects(again, valid)
            results[name][stem] = result, valid
    for name, found in results.items():
        summary(name, found)
    for stem, (r, valid) in results.get("quipu", {}).items():
        if args.list in kinds(r, valid) or (args.list == "slow" and r.get("longest", r.get("seconds", 0)) > 0.1):
            print(stem, r.get("error", ""), f"{r.get('longest', 0):.3f} {r['seconds']:.3f}")
    if args.save:
        Path(args.save).write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
