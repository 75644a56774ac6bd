#!/usr/bin/env python3
"""LoRA adapters of requests to quipu serve: chosen by model names, by llama.cpp's "lora" and by
/lora-adapters; side by side in one batch, with the tokens and log-probabilities that each has alone;
and apart in the cache of prompts. Ends with "N passed, N failed"."""
import atexit
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

try:
    import numpy  # noqa: F401 - of lora_files
except ImportError:
    print("skipped: python3-numpy is missing")
    sys.exit(77)

import lora_files as files
from server_process import HELLO, MODEL, QUIPU, Server, refusal, run_tests, test

FOLDER = Path(tempfile.mkdtemp(prefix="quipu-lora-"))
atexit.register(shutil.rmtree, FOLDER)
TEXT = "the quick brown fox jumps over the lazy dog and then some more words follow it here"
FIRST, SECOND = files.text_adapter(FOLDER / "first", 4, 1), files.text_adapter(FOLDER / "second", 9, 2)
MODULES = ["--lora-modules", f"one={FIRST}", "--lora-modules", f"two={SECOND}:0.5", "--parallel", "6"]


def ask(s, model="base", prompt=TEXT, **fields):
    """What an answer is made of: its tokens with their log-probabilities."""
    status, reply = s.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0,
                                               "logprobs": 3, "ignore_eos": True, **fields})
    assert status == 200, reply
    logprobs = reply["choices"][0]["logprobs"]
    return reply["model"], list(zip(logprobs["tokens"], logprobs["token_logprobs"])), reply["usage"]


def alone(*options, **fields):
    with Server(*options) as s:
        return ask(s, **fields)[1]


@test
def names_choose_adapters(s):
    base, one, two = alone(), alone("--lora", str(FIRST)), alone("--lora", f"{SECOND}:0.5")
    assert base != one != two != base
    for model, expected in (("one", one), ("two", two), ("base", base), ("anything", base)):
        name, made, _ = ask(s, model)
        assert made == expected, model
        assert name == (model if model in ("one", "two") else "llama-text"), name
    for field in "lora_path", "adapter_id":
        assert ask(s, **{field: "one"})[1] == one
    status, reply = s.post("/v1/chat/completions", {"model": "two", "messages": HELLO, "max_tokens": 2})
    assert status == 200 and reply["model"] == "two", reply
    events = s.stream("/v1/chat/completions", {"model": "one", "messages": HELLO, "max_tokens": 2})
    assert all(e["model"] == "one" for e in events if e != "[DONE]"), events
    refusal(s, "/v1/completions", {"prompt": "a", "lora_path": "three"}, "lora_path")


@test
def models_are_listed(s):
    status, reply = s.get("/v1/models")
    assert status == 200 and [m["id"] for m in reply["data"]] == ["llama-text", "one", "two"], reply
    assert reply["data"][1]["parent"] == "llama-text" and reply["data"][1]["root"] == str(FIRST)
    assert s.get("/v1/models/two")[1]["id"] == "two"
    assert s.get("/v1/models/three")[0] == 404


@test
def metrics_name_adapters(s):
    """vLLM's lora_requests_info, which routers read: while answers go on their adapters run, and those without a slot wait."""
    def adapters(server=s):
        lines = [line for line in server.get("/metrics")[1].decode().splitlines() if line.startswith("vllm:lora_requests_info")]
        return dict(re.findall('(max_lora|running_lora_adapters|waiting_lora_adapters)="([^"]*)"', lines[0])) if lines else None

    with Server(*MODULES[:4], "--parallel", "1") as few:
        assert adapters(few) == {"max_lora": "2", "running_lora_adapters": "", "waiting_lora_adapters": ""}, adapters(few)
        seen, done = [], threading.Event()

        def keep_asking(model):
            while not done.is_set():
                few.post("/v1/completions", {"model": model, "prompt": "a", "max_tokens": 100, "ignore_eos": True})

        threads = [threading.Thread(target=keep_asking, args=(model,)) for model in ("one", "two")]
        for thread in threads:
            thread.start()
        expected = {("one", "two"), ("two", "one")}
        end = time.monotonic() + 120
        while expected - set(seen) and time.monotonic() < end:
            seen.append(tuple(adapters(few)[name] for name in ("running_lora_adapters", "waiting_lora_adapters")))
        done.set()
        for thread in threads:
            thread.join()
        assert not expected - set(seen), set(seen)
    with Server() as none:
        assert adapters(none) is None


@test
def others_in_a_batch_change_nothing(s):
    prompts = [TEXT[i:] for i in range(4)]
    lonely = {(m, p): ask(s, m, p)[1] for m in ("base", "one", "two") for p in prompts}
    lonely |= {("both", p): ask(s, prompt=p, lora=[{"id": 0, "scale": 0.5}, {"id": 1, "scale": 2}])[1] for p in prompts}
    failures = []

    def check(model, prompt):
        fields = {"lora": [{"id": 1, "scale": 2}, {"id": 0, "scale": 0.5}]} if model == "both" else {}
        made = ask(s, "base" if model == "both" else model, prompt, **fields)[1]
        if made != lonely[model, prompt]:
            failures.append((model, prompt, made, lonely[model, prompt]))

    threads = [threading.Thread(target=check, args=key) for key in lonely for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


@test
def cached_prompts_are_of_their_adapter(s):
    text = "cached words are " + TEXT
    first = {model: ask(s, model, text) for model in ("base", "one", "two")}
    for model, (_, made, usage) in first.items():
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, model
        _, again, usage = ask(s, model, text)
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0 and again == made, model
    _, _, usage = ask(s, prompt=text, lora=[{"id": 1, "scale": 0.25}])
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0, usage
    _, _, usage = ask(s, prompt=text, lora=[{"id": 1, "scale": 0.5}])
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0, usage


@test
def llama_cpp_has_scales(s):
    base, one, two = ask(s)[1], ask(s, "one")[1], ask(s, "two")[1]
    status, listed = s.get("/lora-adapters")
    assert status == 200 and [(a["id"], a["name"], a["scale"]) for a in listed] == [(0, "one", 0), (1, "two", 0)], listed
    assert ask(s, lora=[{"id": 0, "scale": 1}])[1] == one
    assert ask(s, lora=[{"id": 0, "scale": 0}, {"id": 1, "scale": 0.5}])[1] == two
    assert ask(s, "one", lora=[])[1] == base
    status, reply = s.post("/lora-adapters", [{"id": 1, "scale": 0.5}])
    assert status == 200 and reply == {"success": True}, reply
    assert [a["scale"] for a in s.get("/lora-adapters")[1]] == [0, 0.5]
    assert ask(s)[1] == two and ask(s, "one")[1] == one
    assert s.post("/lora-adapters", [])[0] == 200
    assert ask(s)[1] == base
    for wrong in [{"id": 2, "scale": 1}], [{"id": -1, "scale": 1}], [{"id": 0.5, "scale": 1}], [{"id": 0}], [1], [
            {"id": 0, "scale": "1"}]:
        refusal(s, "/v1/completions", {"prompt": "a", "lora": wrong}, "lora")
        assert s.post("/lora-adapters", wrong)[0] == 400, wrong
    assert s.post("/lora-adapters", {"id": 0, "scale": 1})[0] == 400
    refusal(s, "/v1/completions", {"prompt": "a", "lora": "one"}, "lora")
    assert ask(s)[1] == base


@test
def adapters_of_the_start_hold(s):
    one = ask(s, "one")[1]
    with Server("--lora", f"first={FIRST}", "--lora-modules", f"two={SECOND}:0.5") as other:
        assert ask(other)[1] == one
        assert ask(other, "two")[1] == ask(s, "two")[1]
        assert ask(other, lora=[])[1] == ask(s)[1]
        assert [a["scale"] for a in other.get("/lora-adapters")[1]] == [1, 0]
    with Server("--lora", f"first={FIRST}", "--lora-init-without-apply", "--lora-at-once", "1") as other:
        assert ask(other)[1] == ask(s)[1] and ask(other, "first")[1] == one
    with Server("--lora", str(FIRST), "--lora-merge") as other:
        assert other.get("/lora-adapters")[1] == []
        refusal(other, "/v1/completions", {"prompt": "a", "lora": [{"id": 0, "scale": 1}]}, "lora")
    for options, words in ((["--lora", f"llama-text={FIRST}"], "is the name of the model"),
                           (["--lora-modules", str(FIRST)], "NAME=PATH"),
                           (["--lora-modules", f"a={FIRST}", "--lora-modules", f"a={SECOND}"], "of another adapter")):
        done = subprocess.run([QUIPU, "serve", "-m", str(MODEL), "--port", "0", *options], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode != 0 and words in done.stderr, (words, done.stderr)


if __name__ == "__main__":
    sys.exit(run_tests(lambda: Server(*MODULES)))
