#!/usr/bin/env python3
"""The program as a person or a script uses it: answers, messages, exit codes, signals, terminals.

Runs $QUIPU_BINARY on the tiny models of golden/models. With --update it rewrites golden/cli, the
answers that must not change unnoticed; look at the difference before you commit it.
"""
import fcntl
import json
import os
import pty
import random
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE / "golden/models"
GOLDEN = HERE / "golden/cli"
QUIPU = os.environ.get("QUIPU_BINARY") or str(HERE.parent / "build/quipu")
UPDATE = "--update" in sys.argv
MODEL = "llama-text.gguf"
SLOW = [MODEL, "-c", "200000", "--ignore-eos"]  # an answer of seconds
TEMPORARY = tempfile.mkdtemp(prefix="quipu-cli-")
HOME = {key: value for key, value in os.environ.items() if not key.startswith("QUIPU_")}
HOME |= {"HOME": TEMPORARY, "XDG_CACHE_HOME": TEMPORARY, "XDG_STATE_HOME": TEMPORARY, "LC_ALL": "C.UTF-8", "TERM": "dumb"}
failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print("FAILED:", what)


def quipu(*arguments, stdin=b"", environment=None, **more):
    """(status, stdout, stderr) of one run in golden/models."""
    done = subprocess.run([QUIPU, *arguments], input=stdin, cwd=MODELS, timeout=60,
                          env=HOME | (environment or {}), stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, **more)
    return done.returncode, (done.stdout or b"").decode("utf-8", "replace"), done.stderr.decode()


def expect(status, said, *arguments, **more):
    """Wrong usage and faults: a status, a sentence on stderr, nothing on stdout."""
    found, out, err = quipu(*arguments, **more)
    check(found == status, f"{arguments}: status {found}, expected {status}: {err}")
    check(said in err, f"{arguments}: expected {said!r} in {err!r}")
    check(out == "", f"{arguments}: {out!r} on standard output")


def golden(name, *arguments, stdin=b""):
    status, out, err = quipu(*arguments, stdin=stdin)
    check(status == 0, f"{name}: status {status}: {err}")
    path = GOLDEN / name
    out = out.replace(TEMPORARY, "TEMPORARY")
    if UPDATE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(out)
    check(path.exists() and path.read_text() == out,
          f"{name} is not as committed (test_cli_process.py --update rewrites it):\n{out}")
    return out


def answers():
    greedy = ["--temp", "0", "--exec", "reference"]
    golden("run.txt", "run", "-m", MODEL, "-p", "the cat", "-n", "8", *greedy)
    golden("run_raw_echo.txt", "run", "-m", MODEL, "-p", "the", "-n", "4", "--raw", "--echo", *greedy)
    status, out, err = quipu("run", "-m", MODEL, "-n", "4", "--json", *greedy, stdin=b"the cat")
    answer = json.loads(out)
    check(status == 0 and len(answer["tokens"]) == 4 and answer["finish_reason"] == "length", out)
    check("tokens/s" in err, err)
    check(answer["model"] == MODEL and answer["device"] == "cpu", out)
    check(answer["settings"]["temperature"] == 0 and answer["settings"]["max_tokens"] == 4, out)
    again = quipu("run", "-m", MODEL, "-p", "the cat", "-n", "4", "--json", "-s", "9", "--stop", "x")
    check(json.loads(again[1])["settings"]["seed"] == 9, again)
    check(json.loads(again[1])["settings"]["stop"] == ["x"], again)
    stopped = json.loads(quipu("run", "-m", MODEL, "-p", "the cat", "--json", "--stop", answer["text"][1],
                               *greedy)[1])
    check(stopped["finish_reason"] == "stop", stopped)
    # What a person writes never ends a turn, unless asked for.
    for flags, ends in (([], 1), (["--parse-special"], 2)):
        said = quipu("run", "-m", MODEL, "-p", "a<|im_end|>b", "-n", "1", "--json", *greedy, *flags)[1]
        check(json.loads(said)["prompt_tokens"].count(2) == ends, said)
    dash = quipu("run", "-m", MODEL, "-n", "4", "--json", "-f", "-", *greedy, stdin=b"the cat")
    check(json.loads(dash[1])["prompt_tokens"] == json.loads(out)["prompt_tokens"], f"-f -: {dash}")
    # Text on standard input goes before the prompt.
    joined = quipu("run", "-m", MODEL, "-p", "the cat", "-n", "2", "--raw", "--echo", stdin=b"a dog")
    check(joined[1].startswith("a dog\nthe cat"), joined)
    silent = quipu("run", "-m", MODEL, "-p", "the cat", "-n", "1")[2]
    check("generated 1 token; length" in silent, silent)
    # Without a vocabulary prompt and answer are token ids.
    ids = quipu("run", "-m", "synthetic:tiny", "-p", "1,2,3", "-n", "3", "--temp", "0")[1]
    check(re.fullmatch(r"\d+,\d+,\d+\n", ids), ids)
    crowd = quipu("run", "-m", "synthetic:tiny", "-p", "1", "-n", "1", "-t", "700")[2]
    check("700 threads on" in crowd, crowd)
    drawn = ["run", "-m", MODEL, "-p", "the cat", "-n", "9", "--temp", "1.2", "--json", "-s"]
    status, out, err = quipu(*drawn, "3", "--answers", "3")
    check(status == 0 and "3 answers: prompt 19 tokens, " in err, err)
    alone = [json.loads(quipu(*drawn, str(seed))[1]) for seed in (3, 4, 5)]
    for one, answer in zip(alone, json.loads(out), strict=True):
        check(answer["tokens"] == one["tokens"] and answer["text"] == one["text"], out)
    status, out, err = quipu("run", "-m", MODEL, "-p", "a", "-n", "2", "--answers", "2", *greedy)
    check(status == 0 and out.startswith("--- 1\n") and "\n--- 2\n" in out, out)
    golden("tokenize.txt", "tokenize", "-m", MODEL, stdin="the cat\n<|im_end|> é\xff".encode())
    golden("tokenize_special.txt", "tokenize", "-m", "llama-text", "--special", "--bos",
           stdin=b"<|im_start|>a<|im_end|>")
    ids = quipu("tokenize", "-m", MODEL, stdin="né\tthe 日本\n".encode())[1]
    check(quipu("detokenize", "-m", MODEL, stdin=ids.encode())[1] == "né\tthe 日本\n", "round trip")
    golden("detokenize.txt", "detokenize", "-m", MODEL, "--special", stdin=b"1, 260 [2]\n")
    chat = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    golden("template.txt", "template", "-m", MODEL, "--no-generation-prompt", stdin=chat.encode())
    golden("logits.txt", "logits", "-m", MODEL, "--ids", "1,2,260", "--top", "2", "--exec", "reference")
    rows = json.loads(quipu("logits", "-m", MODEL, "-p", "the", "--json", "--top", "3")[1])
    check(len(rows["positions"][0]["top"]) == 3, rows)
    out = os.path.join(TEMPORARY, "logits")
    quipu("logits", "-m", MODEL, "--ids", "1 2 3", "--out", out)
    check(os.path.getsize(out) == 3 * 288 * 4, "--out holds float32 [positions][vocab_size]")
    score = quipu("perplexity", "-m", MODEL, "-c", "32", "--json", stdin=b"the cat in the hat " * 20)
    check(2 <= json.loads(score[1])["perplexity"] < 1e6, score)
    golden("info.txt", "info", "-m", MODEL)
    golden("info_vocabulary.txt", "info", "-m", vocabulary_only())
    bare = Path(TEMPORARY) / "config-only"
    bare.mkdir()
    shutil.copy(MODELS / "llama-text/config.json", bare)
    status, out, err = quipu("schedule", "-m", MODEL, "--plan", "flashinfer", "--verify")
    check(status == 0 and "ragged_prefill" in out and "sound in every order" in out, (out, err))
    for command in ("plan", "shapes", "schedule"):
        whole, alone = (quipu(command, "-m", str(path), "--json") for path in (MODELS / "llama-text", bare))
        check(alone[0] == 0 and alone[1] == whole[1], f"{command} of a config.json alone: {alone}")
    found = json.loads(quipu("info", "-m", str(bare), "--json")[1])
    check(found["hidden_size"] == 24 and found["has_weights"] is False, f"a config.json alone: {found}")
    golden("modules.txt", "info", "-m", str(bare / "config.json"), "--modules")
    modules = json.loads(quipu("info", "-m", str(bare), "--modules", "--json")[1])["modules"]
    check(modules[0]["parameters"] == 21624 and modules[-1]["class"] == "Linear", f"modules: {modules}")
    q_proj = next(m for m in modules if m["name"].endswith("self_attn.q_proj"))
    check((q_proj["in_features"], q_proj["out_features"], q_proj["count"]) == (24, 24, 2), q_proj)
    expect(2, "a JSON file has no weights", "logits", "-m", str(bare / "config.json"), "--ids", "1")
    expect(1, "expected model.safetensors", "logits", "-m", str(bare), "--ids", "1")
    check(json.loads(quipu("info", "-m", MODEL, "--json")[1])["n_layers"] == 2, "info --json")
    golden("plan.txt", "plan", "-m", MODEL, "--tokens", "8", "--memory", "1G")
    golden("shapes.txt", "shapes", "-m", "synthetic:internlm2-1.8b", "--tokens", "4", "--batch", "2")
    plan = json.loads(quipu("plan", "-m", "synthetic:llama-3.1-8b", "--ranks", "2", "--json")[1])
    check(plan["bytes"]["total"] > plan["bytes"]["weights"] > 1e9, "plan --json")
    # More positions than the model was trained for fit too.
    plan = json.loads(quipu("plan", "-m", MODEL, "-c", "60000000", "--memory", "1G", "--json")[1])
    check(100000 < plan["largest_context"] < 60000000, plan)
    status, out, err = quipu("diff", "-m", MODEL, "-p", "the cat sat", "--one-by-one", "1")
    check(status == 0 and "within tolerance" in out and "the same bits" in out, out + err)
    found = json.loads(quipu("diff", "-m", "synthetic:tiny:Q8_0", "--ids", "1 2 3", "--json")[1])
    check(found["equal"] and found["tokens"] == 3, "diff --json")
    found = json.loads(quipu("doctor", "--json")[1])
    check(found["version"] and found["cpu"]["processors"] >= 1, found)
    check(found["memory_available_bytes"] > 1e6 and isinstance(found["cpu"]["features"], list), found)
    rows = json.loads(quipu("shapes", "-m", "synthetic:tiny", "--tokens", "4", "--json")[1])
    check(all(isinstance(n, int) for row in rows for n in row["prefill"] + row["decode"]), rows)
    check("n_tokens" in rows[0]["shape"] and rows[0]["prefill"][0] == 4, rows[0])
    check("features" in quipu("doctor")[1], "doctor")
    found = json.loads(quipu("doctor", "-m", "synthetic:tiny", "--device", "cpu", "--json")[1])
    stages = {stage["name"]: stage["seconds"] for stage in found["start"]["stages"]}
    check({"making weights", "making the schedule", "the first pass"} <= stages.keys(),
          f"doctor names what start is made of: {stages}")
    check(abs(sum(stages.values()) - found["start"]["seconds"]) < 1e-4, "the stages are all of it")
    check(found["model"] == "synthetic:tiny" and found["start"]["next_seconds"] > 0, "doctor -m")
    text = quipu("doctor", "-m", "synthetic:tiny", "--device", "cpu")[1]
    check("to the first logits" in text and "arranging weights" in text, text)
    with tempfile.TemporaryDirectory() as folder:
        asked = ["run", "-m", MODEL, "-p", "one", "--raw", "-n", "4", "--temp", "0", "--device", "cpu", "-v",
                 "--cache-packed", folder + "/packed"]
        first, again = quipu(*asked), quipu(*asked)
        check("kept for the next start" in first[2] and "mapped from" in again[2] and first[1] == again[1],
              first[2] + again[2])
        small = quipu(*asked[:-1], folder + "/other", "--cache-packed-size", "2K")
        check(small[1] == first[1] and "packed weights are not kept" in small[2], small[2])
    check(quipu("run", "-m", MODEL, "-p", "one", "--cache-packed-size", "12")[0] != 0, "--cache-packed-size 12")
    status, _, err = quipu("doctor", "-m", "/nowhere.gguf")
    check(status != 0 and "/nowhere.gguf" in err, err)


def speculation():
    """Proposals change neither the tokens nor the text of an answer."""
    asked = ["run", "-m", MODEL, "-p", "one two three one two", "--raw", "-n", "40", "-s", "7", "--json", "--ignore-eos"]
    plain = json.loads(quipu(*asked)[1])
    check(plain["proposed_tokens"] == 0 and plain["generate_passes"] == 39, f"passes without proposals: {plain}")
    for how in (["--speculate", "lookup"], ["--draft", MODEL]):
        said = json.loads(quipu(*asked, *how)[1])
        check(said["tokens"] == plain["tokens"] and said["text"] == plain["text"], f"{how}: another answer")
        check(said["generate_passes"] == 39 - said["accepted_tokens"], f"{how}: passes of {said}")
        check(said["accepted_tokens"] <= said["proposed_tokens"], f"{how}: proposals of {said}")
    expect(2, "exclude each other", "run", "-m", MODEL, "-p", "a", "--draft", MODEL, "--speculate", "lookup")
    expect(2, "vocabulary", "run", "-m", MODEL, "-p", "a", "--draft", "qwen2.gguf")
    expect(1, "the draft model", "run", "-m", MODEL, "-p", "a", "--draft", "missing.gguf")
    status, out, err = quipu("bench", "-m", MODEL, "-p", "0", "-n", "20", "-r", "1", "--speculate", "lookup", "-o", "json")
    check(status == 0 and json.loads(out)[0]["test"] == "tg20", f"bench with proposals: {err}")
    status, out, err = quipu("bench", "-m", MODEL, "-p", "8", "-n", "4", "-r", "1", "-t", "2", "--skip", "all", "-o", "json")
    rows = json.loads(out)
    kinds = [row["left_out"] for row in rows if row["test"] == "tg4"]
    check(status == 0 and kinds[0] == "nothing" and kinds[-1] == "waits" and "linear" in kinds
          and len(rows) == 2 * len(kinds) and all(row["ms"] > 0 for row in rows), f"bench --skip all: {out} {err}")


def vocabulary_only():
    """A directory with tokenizer files and nothing else."""
    folder = Path(TEMPORARY, "vocabulary")
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "llama-text" / name, folder)
    return str(folder)


def texts():
    commands = re.findall(r"^  (\w+(?: \w+)?) ", quipu("help")[1], re.M)
    check({"run", "chat", "plan", "version"} <= set(commands), commands)
    for command in commands:
        status, out, err = quipu(*command.split(), "--help")
        check(status == 0 and out.startswith(f"usage: quipu {command}"), f"{command} --help: {err}")
        check(max(map(len, out.splitlines()[1:])) <= 80, f"{command} --help is wider than 80")
    check(quipu("--version")[1] == quipu("version")[1], "version")
    check(quipu("run", "--help")[1] == quipu("help", "run")[1], "help run")
    check("--cpu-mask" not in quipu("run", "--help")[1], "help is for every day")
    check("--cpu-mask" in quipu("run", "--help-all")[1], "--help-all shows all")
    family = quipu("ops")
    check(family[0] == 0 and "ops check" in family[1] and "ops list" in family[1], family)
    check(family == quipu("ops", "--help") == quipu("help", "ops"), "the commands of a family")
    for shell in ("bash", "zsh", "fish"):
        script = quipu("completion", shell)[1]
        check("--temp" in script or "temp" in script, shell)
        if shutil.which(shell):
            read = subprocess.run([shell, "-n"], input=script.encode(), capture_output=True)
            check(read.returncode == 0 and not read.stderr, f"{shell}: {read.stderr}")
    page = quipu("man")[1]
    check("QUIPU_TOP_P" in page, "man names the environment")
    for title in ("ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES"):
        check(f"\n.SH {title}\n" in page, f"man has {title}")
    if shutil.which("groff"):
        read = subprocess.run(["groff", "-ww", "-man", "-Tutf8"], input=page.encode(),
                              capture_output=True)
        check(read.returncode == 0 and not read.stderr, f"groff: {read.stderr}")


def bad_input():
    run = ["run", "-m", MODEL]
    expect(2, "usage: quipu COMMAND")
    expect(2, "did you mean 'chat'", "chta")
    expect(2, "unknown command 'quux'", "quux")
    expect(2, "did you mean --temp?", *run, "--tmep", "1")
    expect(2, "--temp: expected a number from 0 to 100, found 'hot'", *run, "--temp", "hot")
    expect(2, "-n: expected an integer", *run, "-n", "-1")
    expect(2, "QUIPU_TOP_P: expected a number from 0 to 1", *run, environment={"QUIPU_TOP_P": "7"})
    expect(2, "a model of the hub is OWNER/NAME", "run", "-hf", "repo", "-p", "hi")
    expect(2, "exclude each other", *run, "-hf", "o/m", "-p", "hi")
    expect(2, "has no -ngl: a model runs whole on one device", *run, "-ngl", "99")
    expect(2, "-c N or --context N", *run, "-ctx", "4096")
    expect(2, "did you mean --temp?", *run, "-temp", "1")
    expect(2, "of `quipu bench` it is --output csv or json", "bench", "-m", MODEL, "--format", "csv")
    expect(1, "the plan padded runs on the CPU, but --device cuda", *run, "--plan", "padded", "--device", "cuda")
    expect(1, "no file or model called \"llama3.2\"; did you mean llama3.2:1b?", "info", "-m", "llama3.2")
    expect(1, "Hugging Face with this name is -hf Owner/Model", "run", "-m", "Owner/Model", "-p", "hi")
    expect(1, "nosuch.gguf: cannot open", "plan", "-m", "nosuch.gguf")
    expect(2, "the name of the model is empty", "info", "-m", "")
    expect(2, "has no command 'server'", "server", "--port", "8080")
    for origin in ["page", "https://", "https://page/"]:
        expect(2, f"found '{origin}'", "serve", "-m", MODEL, "--port", "0", "--cors-origin", origin)
    expect(2, "--help takes no value, found 'x'", *run, "--help=x")
    expect(1, "expected at most 268435456 bytes", *run, "-f", "/dev/zero")
    expect(2, "exclude each other", *run, "-p", "a", "-f", "b")
    expect(2, "exclude each other", *run, "-p", "a", "--raw", "--chat")
    expect(2, "the prompt is empty", *run, "-p", "", "--raw")
    expect(2, "the context is full", *run, "-p", "a", "-c", "3")
    expect(2, "room for ", *run, "-p", "word " * 600)
    expect(1, "a folder without config.json is no model", "run", "-m", "/", "-p", "a")
    expect(2, "unknown CPU feature 'sse9'", *run, "-p", "a", "--cpu-mask", "sse9")
    expect(2, "--logit-bias must be", *run, "-p", "a", "--logit-bias", "x")
    expect(2, "a stop text must not be empty", *run, "-p", "a", "--stop", "")
    expect(2, "--answers: expected an integer from 1 to 512", *run, "-p", "a", "--answers", "0")
    expect(2, "unexpected 'more'", *run, "-p", "a", "more")
    expect(1, "/nowhere: ", "run", "-m", "/nowhere", "-p", "a")
    expect(1, "/nowhere: ", *run, "-f", "/nowhere")
    expect(2, "a JSON file has no weights", "run", "-m", "manifest.json", "-p", "a")
    expect(1, "not a GGUF file", "run", "-m", "llama-text/logits.f32", "-p", "a")
    expect(1, "fetch it with", "run", "-p", "a")
    expect(2, "no preset", "run", "-m", "synthetic:huge", "-p", "1")
    expect(2, "the model has no vocabulary", "run", "-m", "synthetic:tiny", "-p", "word")
    expect(2, "give token ids with --ids", "logits", "-m", "synthetic:tiny", "-p", "1")
    expect(2, "ids 0 to 287", "logits", "-m", MODEL, "--ids", "1,288")
    expect(2, "the prompt is empty", "logits", "-m", MODEL, "--ids", "")
    expect(2, "did you mean 1.rope?", "diff", "-m", MODEL, "--stop-after", "1.ropes")
    expect(2, "a machine is one of", "diff", "-m", MODEL, "--b", "hope")
    expect(2, "the prompt is empty", "diff", "-m", MODEL, "-p", "")
    expect(2, "give token ids with --ids", "diff", "-m", "synthetic:tiny", "-p", "1")
    expect(2, "found \"x\"", "detokenize", "-m", MODEL, stdin=b"1 x")
    expect(1, "not valid JSON", "template", "-m", MODEL, stdin=b"{")
    expect(2, "an array of messages", "template", "-m", MODEL, stdin=b"{}")
    expect(2, "fewer than one chunk", "perplexity", "-m", MODEL, stdin=b"short")
    expect(1, "neither weights nor a vocabulary", "info", "-m", "/")
    expect(1, "no chat template", "chat", "-m", "llama-gqa8-f16.gguf")
    expect(2, "bash, zsh and fish", "completion", "ksh")
    expect(2, "'ops' is followed by one of list, describe", "ops", "zzzzzz")
    expect(2, "need a context of 512, --context says 5", "bench", "-m", MODEL, "-c", "5")
    expect(2, "no \"\" to skip", "bench", "-m", MODEL, "-p", "0", "-n", "2", "--skip", "")
    expect(2, "no \"lineer\" to skip", "bench", "-m", MODEL, "-p", "0", "-n", "2", "--skip", "lineer")
    expect(1, "wait for each other's rows", "bench", "-m", MODEL, "-n", "2", "-p", "0", "--skip", "waits", "--ranks", "2", "-t", "1")
    expect(1, "timed operator by operator", "trace", "-m", MODEL, "-p", "hi", "--skip", "linear", "--exec", "serial")
    expect(2, "cannot be combined with --speculate", "bench", "-m", MODEL, "--skip", "all", "--speculate", "lookup")
    expect(2, "need all of it", "schedule", "-m", MODEL, "--stop-after", "0.rope", "--verify")
    expect(2, "no effect without it", "schedule", "-m", MODEL, "--types", "BF16")
    expect(2, "nothing to measure", "bench", "-m", MODEL, "-p", "0", "-n", "0")
    expect(2, "it has llama-3.1-8b attn_qkv, ", "ops", "bench", "linear", "-w", "nowhere")
    expect(2, "exclude each other", "schedule", "-m", MODEL, "--measure", "--compare")
    expect(2, "cannot be combined with --compare", "schedule", "-m", MODEL, "--compare", "--list")
    expect(2, "cannot be combined with --compare", "schedule", "-m", MODEL, "--compare", "--plan", "flashinfer")
    expect(2, "on CPU threads", "schedule", "-m", MODEL, "--compare", "--load", "x", "--device", "cuda")
    expect(2, "has no effect on --measure", "schedule", "-m", MODEL, "--measure", "--load", "x")
    expect(2, "has no effect on threads", "trace", "-m", MODEL, "--ids", "1,2", "--tracks", "3")
    expect(1, "the plan padded has no schedule", "schedule", "-m", MODEL, "--plan", "padded")
    expect(2, "cannot be combined with --setting throughput", "schedule", "-m", MODEL, "--sums",
           "--setting", "throughput")


def models_that_are_refused():
    """What a model would compute with and quipu does not is named, not left out."""
    folder = Path(TEMPORARY, "other")
    shutil.copytree(MODELS / "llama-text", folder)
    config = json.loads((folder / "config.json").read_text())

    def refused(said, changes, *arguments):
        (folder / "config.json").write_text(json.dumps(config | changes))
        expect(1, said, *arguments, "-m", str(folder))

    refused('architecture "GemmaForCausalLM" is not supported', {"architectures": ["GemmaForCausalLM"]}, "info")
    slides = {"sliding_window": 64}, "-c", "100", "-p", "a"
    refused("which a fused plan does not compute; choose a context of at most 64", slides[0], "run", "--fuse", *slides[1:])
    refused("which only the plan paged computes", slides[0], "run", "--plan", "flashinfer", *slides[1:])
    refused("positions is not taken apart", slides[0], "trace", "--exec", "serial", "--tracks", "2", *slides[1:])
    refused('"model.layers.1.', {"num_hidden_layers": 1}, "run", "-p", "a")
    refused('"num_local_experts" is set', {"num_local_experts": 8}, "logits", "--ids", "1")


def windows():
    """Where attention slides over 8 positions, the last token of 24 is reached through two layers from the latest
    15 alone, on every machine."""
    folder = Path(TEMPORARY, "slides")
    shutil.copytree(MODELS / "llama-text", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 8}))

    _, out, _ = quipu("info", "-m", str(folder))
    check(re.search(r"^sliding_window +8$", out, re.M), f"info: {out}")
    _, out, err = quipu("plan", "-m", str(folder), "--device", "cuda", "-c", "30")
    check("paged_prefill" in out, f"plan: {out}{err}")

    def logits(changed, *arguments):
        ids = [str(100 + i + (i == changed)) for i in range(24)]
        path = Path(TEMPORARY, "logits.f32")
        status, _, err = quipu("logits", "-m", str(folder), "--ids", ",".join(ids), "-o", str(path), *arguments)
        check(status == 0, f"{arguments}: {err}")
        return path.read_bytes()[-4 * config["vocab_size"]:]

    gpu = ("cuda",) if os.path.exists("/dev/nvidiactl") else ()
    for machine in ("reference", "serial", "threads", *gpu):
        where = ["-c", "30", "--exec", machine]
        check(logits(8, *where) == logits(None, *where), f"{machine}: a token outside of the windows")
        check(logits(9, *where) != logits(None, *where), f"{machine}: a token inside")
    expect(2, "-c sets a longer context", "logits", "-m", str(folder), "--ids", ",".join(["3"] * 9))


def without_a_gpu():
    """What asks for a GPU where there is none says so; what needs none answers all the same."""
    if os.path.exists("/dev/nvidiactl"):
        return
    tiny, cuda = ["-m", "synthetic:tiny"], ["--device", "cuda"]
    for words in (["run", *tiny, "-p", "1"], ["chat", "-m", MODEL], ["logits", *tiny, "--ids", "1"],
                  ["bench", *tiny], ["trace", *tiny, "--ids", "1"], ["schedule", *tiny],
                  ["schedule", *tiny, "--compare", "--workers", "8"], ["ops", "check"],
                  ["perplexity", "-m", MODEL, "-f", "manifest.json"]):
        expect(1, "use --device cpu", *words, *cuda)
    expect(1, "takes an NVIDIA GPU", "ops", "bench", "linear", *cuda)
    expect(1, "takes an NVIDIA GPU", "ops", "check", "rms_norm", "--kernel",
           str(HERE.parent / "examples/rms_norm.cu"))
    expect(1, "--exec megakernel runs on a GPU, but ", "logits", *tiny, "--ids", "1", "--exec", "megakernel",
           "--device", "auto")
    for side in ("megakernel", "cuda"):
        expect(1, "use --device cpu", "diff", *tiny, "--b", side)
    status, out, err = quipu("schedule", *tiny, *cuda, "--workers", "132", "--verify")
    check(status == 0 and "132 workers" in out and "sound in every order" in out, err)
    status, out, err = quipu("plan", *tiny, *cuda)
    check(status == 0 and "megakernel" in out and "no GPU to compare this with" in out, err)
    status, out, err = quipu("plan", *tiny, *cuda, "--memory", "1G", "--json")
    gpu = json.loads(out)["gpu"]
    check(status == 0 and gpu["verdict"] == "fits" and gpu["largest_context"] == 2048, err)
    parts = [part for name, part in gpu["bytes"].items() if name != "total"]
    check(sum(parts) == gpu["bytes"]["total"], "the parts of the GPU's memory add up")
    expect(1, "has no vocabulary", "tokenize", "-m", "synthetic:tiny")


def environment_and_precedence():
    def settings(*arguments, environment=None, model=MODEL):
        status, _, err = quipu("run", "-m", model, "-p", "a", "-n", "1", "-v", *arguments,
                               environment=environment)
        check(status == 0, err)
        return dict(re.findall(r"^quipu: (\w+) = (.*)$", err, re.M))

    own = Path(TEMPORARY, "own.gguf")
    own.symlink_to(MODELS / MODEL)
    beside = Path(TEMPORARY, "own.generation_config.json")
    beside.write_text('{"temperature": 0.25, "top_k": 7, "eos_token_id": [2, 5]}')
    check(settings()["temperature"] == "1 (neutral)", "neutral")
    found = settings("--temp", "0.5", environment={"QUIPU_TOP_K": "9"}, model=str(own))
    check(found["temperature"] == "0.5 (command line)", found)
    check(found["top_k"] == "9 (environment)", found)
    found = settings(model=str(own))
    check(found["temperature"] == "0.25 (generation_config.json)", found)
    check(found["top_k"] == "7 (generation_config.json)", found)
    found = settings("--top-k", "3", environment={"QUIPU_TOP_K": "9"})
    check(found["top_k"] == "3 (command line)", found)
    def runs(environment, *arguments):
        status, out, err = quipu(*arguments, environment=environment)
        check(status == 0, f"{environment} {arguments}: {err}")

    # The command line wins over a variable that does not go with it.
    run = ["run", "-m", MODEL, "-n", "1"]
    runs({"QUIPU_PROMPT": "x"}, *run, "-f", "manifest.json", "-c", "60000", "--raw")
    runs({"QUIPU_RAW": "1"}, *run, "-p", "hi", "--chat")
    runs({"QUIPU_DEVICE": "auto"}, "schedule", "-m", MODEL)
    runs({"QUIPU_TEMP": "hot"}, *run, "-p", "hi", "--temp", "1")
    runs({"HOME": str(MODELS)}, "info", "-m", f"~/{MODEL}")
    beside.write_text('{"temperature": "warm"}')
    expect(1, "own.generation_config.json", "run", "-m", str(own), "-p", "a")
    twin = quipu("tokenize", environment={"QUIPU_MODEL": MODEL, "QUIPU_BOS": "1"}, stdin=b"a")
    check(twin == quipu("tokenize", "-m", MODEL, "--bos", stdin=b"a"), twin)
    seeds = {quipu("run", "-m", MODEL, "-p", "a", "-n", "20", "-s", str(s))[1] for s in (1, 1, 2)}
    check(len(seeds) == 2, "a seed decides the text")


def writing_fails():
    texts = [["run", "-m", MODEL, "-p", "a", "-n", "9"], ["info", "-m", MODEL], ["help"],
             ["plan", "-m", MODEL], ["logits", "-m", MODEL, "--ids", "1"],
             ["tokenize", "-m", MODEL], ["run", "-m", MODEL, "-p", "a", "-n", "9", "--json"]]
    for arguments in texts:
        with open("/dev/full", "wb") as full:
            expect(1, "No space left", *arguments, stdout=full)
        expect(1, "standard output cannot be written", *arguments,
               preexec_fn=lambda: os.close(1), stdout=None)
        reader, writer = os.pipe()
        os.close(reader)
        status, _, err = quipu(*arguments, stdout=writer)
        os.close(writer)
        check((status, err) == (-signal.SIGPIPE, ""), f"{arguments} | head: {status} {err!r}")
    expect(1, "standard input: cannot be read", "tokenize", "-m", MODEL,
           preexec_fn=lambda: os.close(0))
    status, _, err = quipu("logits", "-m", MODEL, "--ids", "1", "--out", "/dev/full")
    check(status == 1 and "No space left" in err, err)


def conversion():
    made = Path(TEMPORARY, "made.gguf")
    expect(2, "-o FILE.gguf", "convert", "-m", MODEL)
    expect(2, "expected one of F32", "convert", "-m", MODEL, "-o", str(made), "--type", "Q7")
    expect(2, "device", "convert", "-m", MODEL, "-o", "/dev/null")
    check(Path("/dev/null").is_char_device(), "a device stays")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    expect(1, "File too large", "convert", "-m", "synthetic:tiny", "-o", str(made),
           preexec_fn=limit)
    check(not list(made.parent.glob("made*")), "no part of a file is left")
    status, out, err = quipu("convert", "-m", MODEL, "-o", str(made), "--type", "Q8_0")
    check((status, out) == (0, ""), err)
    check([p.name for p in made.parent.glob("made*")] == ["made.gguf"], "the file alone")
    own = Path(TEMPORARY, "settled.gguf")
    own.symlink_to(MODELS / MODEL)
    settings = own.with_suffix(".generation_config.json")
    settings.write_text('{"temperature": 0.25}')
    check(quipu("convert", "-m", str(own), "-o", str(made))[0] == 0, "a model with settings")
    copied = made.with_suffix(".generation_config.json")
    check(copied.read_text() == settings.read_text(), "settings go along")
    copied.unlink()
    command = "run", "-p", "one two", "-n", "5", "--temp", "0"
    check(quipu(*command, "-m", str(made))[0] == 0, "the file runs")
    child = subprocess.Popen([QUIPU, "convert", "-m", "synthetic:llama-3.2-1b", "-o", str(made),
                              "--type", "Q5_1"], env=HOME, stderr=subprocess.PIPE)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    check(child.returncode in (130, -signal.SIGINT), f"status {child.returncode}")
    check([p.name for p in made.parent.glob("made*")] == ["made.gguf"], "the file before")
    made.unlink()


def conversation():
    kept = Path(TEMPORARY, "kept.json")
    kept.write_text("before")

    def chat(lines, *arguments, **more):
        return quipu("chat", "-m", MODEL, "-n", "5", *arguments, stdin=lines.encode(), **more)

    status, out, err = chat("one\\\ntwo\n/stats\n/help\n/drop\n/drop\n/system be brief\n\nhi\n"
                            f"/save {kept}\n/reset\n/load {kept}\n/quit\nnot read\n", "-v")
    check(status == 0, err)
    for said in ("1 answer,", "/save", "are forgotten", "nothing to forget", "message is set",
                 "3 messages saved", "begins anew", "3 messages loaded"):
        check(said in err, f"{said!r} in {err}")
    roles = [message["role"] for message in json.loads(kept.read_text())]
    check(roles == ["system", "user", "assistant"], roles)
    whole = kept.read_text()
    other = ["/clear", "/?", "/set temp 0.5", "/set top-k 3", "/set", "/regen", "hi", "/regen", "/set temp 0",
             "/regen", "/set tmep 1", "/set temp hot", "/load /dev/zero", "/hlep"]
    status, _, err = chat("\n".join(other) + "\n/bye\nnot read\n")
    for said in ("begins anew", "/help, /?", "temp is 0.5", "top-k              3",
                 "no answer yet", "At temperature 0", "Did you mean temp?", "expected a number, found 'hot'",
                 "at most 67108864 bytes", "/hlep is not a command; did you mean /help?"):
        check(said in err, f"{said!r} in {err}")
    check(status == 2 and err.count("Stopped after 5 tokens") == 2, err)
    each = [chat("hi\n", "--seed", str(seed), "--temp", "1.5")[1] for seed in (4, 5, 6)]
    status, out, err = chat("hi\n/regen\n/regen\n/clear\nhi\n", "--seed", "4", "--temp", "1.5")
    check(status == 0 and out == "".join(each + each[:1]) and each[0] != each[1],
          f"/regen uses the next seeds, a new question the one that was set: {out} {each}")
    # A link that somebody planted where a temporary file could be is not followed.
    planted, target = Path(TEMPORARY, "planted.json"), Path(TEMPORARY, "target")
    target.write_text("mine")
    for number in range(os.getpid(), os.getpid() + 300):
        Path(f"{planted}.{number}.tmp").symlink_to(target)
    check(chat(f"hi\n/save {planted}\n")[0] == 0 and target.read_text() == "mine", "a planted link")
    check(planted.stat().st_mode & 0o77 == 0, "a new conversation is its owner's alone")
    status, _, err = chat("hi\n/save ~/kept.json\n/load ~/kept.json\n/load ~nobody/x\n",
                          environment={"HOME": TEMPORARY})
    check("2 messages loaded from " + str(kept) in err and "~nobody/x: " in err, err)
    kept.write_text(whole)
    status, out, err = chat("hi\n/sav x\n/save\n/load /nowhere\n/save /nowhere/x\nhi\n")
    check(status == 2 and "see above" in err and err.count("Stopped after") == 2, err)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
    status, _, err = chat(f"hi\n/save {kept}\n", preexec_fn=limit)
    check(status == 1 and "cannot be written: File too large" in err, err)
    check(kept.read_text() == whole, "what was saved before is still there")
    check(sorted(p.name for p in kept.parent.glob("kept*")) == ["kept.json"], "no temporary file left")
    check(chat("hi\n/save /dev/full\n")[0] == 1, "full disk")
    check(chat("hi\n/save /dev/null\n")[0] == 0 and Path("/dev/null").is_char_device(), "a device stays")
    status, out, err = chat("hello there, you\nagain\n/drop\nagain\n", "-c", "48")
    check(status == 2 and "Nothing was cut" in err and out.count("\n") >= 2, err)
    kept.write_text('{"no": "list"}')
    check("must be an array" in chat(f"/load {kept}\n")[2], "a file that is no conversation")
    check(chat("")[0] == 0, "an empty pipe")
    status, _, err = chat("a\0b\n")
    check(status == 2 and "holds a NUL" in err, err)


def traces():
    path = Path(TEMPORARY) / "trace.json"
    trace = ["trace", "-m", MODEL, "-t", "2"]
    status, out, err = quipu(*trace, "-p", "hello", "-n", "3", "-o", str(path))
    check(status == 0 and out == "", f"trace into a file: {err} {out}")
    events = json.loads(path.read_text())["traceEvents"]
    check({e["cat"] for e in events if e["ph"] == "X"} >= {"pass", "wait", "work", "signal", "host"},
          "a trace has all kinds of slices")
    picture, page = path.with_suffix(".svg"), path.with_suffix(".html")
    status, out, err = quipu(*trace, "-p", "hello", "-n", "3", "--svg", str(picture), "--html", str(page))
    check(status == 0 and out == "", f"trace as pictures: {err} {out}")
    status, out, err = quipu(*trace, "-p", "hello", "-n", "3", "--svg", "-")
    check(status == 0 and out.startswith("<svg") and out.rstrip().endswith("</svg>")
          and not Path("-").exists(), f"a picture on standard output: {err} {out[:200]}")
    status, out, err = quipu(*trace, "-p", "hello", "-n", "3", "--table")
    rows = out[out.index("generation:"):].splitlines()[2:]
    ran = {row.split()[0]: int(row.split()[1]) for row in rows[:rows.index(next(
        row for row in rows if row.startswith("waiting")))]}
    status, out, err = quipu("schedule", "-m", MODEL, "--workers", "2", "--json")
    check(status == 0 and json.loads(out)["opcodes"] == ran, f"the schedule is what ran: {out} {ran}")
    drawn = xml.etree.ElementTree.parse(picture).getroot().itertext()
    check({"worker 1", "critical path", "linear"} <= set(drawn), "a picture names what it shows")
    check("</html>" in page.read_text(), "a whole page")
    status, out, err = quipu("schedule", "-m", MODEL, "--workers", "4", "--html", str(page))
    check(status == 0 and "predicted" in out and "4 workers" in page.read_text(), f"schedule: {err}")
    expect(1, "cannot be written", "schedule", "-m", MODEL, "--html", "/dev/full")
    expect(1, "cannot be created", *trace, "-p", "hi", "--svg", "/nonexistent/trace.svg")
    status, out, err = quipu(*trace, "--ids", "1,2", "-n", "3", "-o", "/dev/null", "--table")
    check(status == 0 and re.search(r"^generation: 2 passes of 1 token, [\d.]+ ms each$", out, re.M), out)
    status, out, err = quipu(*trace, "--ids", "1", "-n", "3")
    check(status == 0 and re.search(r"^prompt: 1 pass of 1 token, ", out, re.M), out)
    check(bool(re.search(r" 1\d\d\.\d% ", out)) <= ("over 100% where data came" in out), out)
    expect(1, "cannot be created", *trace, "-p", "hi", "-o", "/nonexistent/trace.json")
    expect(1, "cannot be written", *trace, "-p", "hi", "-o", "/dev/full")
    expect(1, "times nothing", *trace, "-p", "hi", "--exec", "reference")
    expect(1, "has no schedule", *trace, "-p", "hi", "--exec", "threads", "--plan", "padded")
    expect(2, "--plan", *trace, "-p", "hi", "--plan", "ragged")
    expect(2, "context is full", *trace, "-p", "hi", "-n", "64", "-c", "8")
    expect(2, "give token ids with --ids", "trace", "-m", "synthetic:tiny", "-p", "hi")
    expect(2, "the prompt is empty", "trace", "-m", "synthetic:tiny", "--ids", "")
    expect(2, "from 1 to 65536", *trace, "-n", "0")


def until(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    check(condition(), what)


def catches(pid, number):
    """Whether the process has a handler for the signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)[1]
    return int(caught, 16) >> (number - 1) & 1 == 1


def interrupts():
    random.seed(7)
    for command, stdin in ((["run", "-p", "a"], b""), (["chat"], b"a\nb\n"), (["run"], None)):
        for delay in [random.uniform(0, 0.25) for _ in range(6)] + [0.5]:
            arguments = [QUIPU, *command, "-m", *SLOW]
            child = subprocess.Popen(arguments, cwd=MODELS, env=HOME, stdin=subprocess.PIPE,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if stdin is not None:
                child.stdin.write(stdin)
                child.stdin.close()
                child.stdin = None
            if delay == 0.5:  # sooner, it may still be loading
                until(lambda: catches(child.pid, signal.SIGINT), f"{command} catches interrupts")
            time.sleep(delay)
            child.send_signal(signal.SIGINT)
            err = child.communicate(timeout=60)[1].decode()
            check(child.returncode in (130, -signal.SIGINT), f"{command}: {child.returncode} {err}")
            check("interrupted" in err or delay < 0.5, f"{command} after {delay}: {err!r}")


class Screen:
    """What a terminal shows: as much of one as the program uses. Rows above never scroll away."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column, self.rest = columns, [[]], 0, 0, ""

    def feed(self, text):
        text = self.rest + text
        at = 0
        while at < len(text):
            sequence = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])").match(text, at)
            if sequence:
                self.control(sequence[2], int(sequence[1]) if sequence[1].isdigit() else 0)
                at = sequence.end()
            elif text[at] == "\x1b" and len(text) - at < 12:
                break  # the rest of it is still to come
            else:
                self.put(text[at])
                at += 1
        self.rest = text[at:]

    def control(self, letter, number):
        row = self.rows[self.row]
        if letter == "A":
            self.row = max(0, self.row - (number or 1))
        elif letter == "B":
            self.down(number or 1)
        elif letter == "C":
            self.column = min(self.columns - 1, self.column + (number or 1))
        elif letter == "D":
            self.column = max(0, self.column - (number or 1))
        elif letter == "J":
            del self.rows[self.row + 1:]
            del row[self.column:]
        elif letter == "K":
            del row[self.column:]

    def down(self, count):
        self.row += count
        while len(self.rows) <= self.row:
            self.rows.append([])

    def put(self, character):
        if character == "\n":
            self.down(1)
        elif character == "\r":
            self.column = 0
        elif character >= " " and not unicodedata.combining(character):
            if self.column >= self.columns:
                self.down(1)
                self.column = 0
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = character
            self.column += 1

    def text(self, first=0):
        return "\n".join("".join(row) for row in self.rows[first:])


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *arguments, columns=80, kind="xterm"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(MODELS)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
            os.execve(QUIPU, [QUIPU, *arguments], HOME | {"TERM": kind})
        self.screen, self.seen, self.raw = Screen(columns), 0, ""

    def until(self, pattern, seconds=30):
        """Waits until what is on the screen below the last such match has the pattern."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.screen.text(self.seen)) and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    text = os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
                self.raw += text
                self.screen.feed(text)
        shown = self.screen.text(self.seen)
        check(re.search(pattern, shown), f"terminal: {pattern!r} in {shown[-500:]!r}")
        self.seen = self.screen.row

    def edit(self, text):
        """Types into the editor, which shows its prompt before it takes the terminal over."""
        until(lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON, "the editor's terminal")
        os.write(self.fd, text.encode())

    def resize(self, columns):
        self.screen.columns = columns
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def interrupt(self):
        os.write(self.fd, b"\x03")

    def status(self):
        """Of its end, with all that it wrote until then."""
        try:
            while select.select([self.fd], [], [], 60)[0]:
                text = os.read(self.fd, 65536).decode("utf-8", "replace")
                self.raw += text
                self.screen.feed(text)
        except OSError:  # the other end is closed
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def terminal():
    t = Terminal("chat", "-m", *SLOW)
    t.until(r"llama-text.gguf, context 200000. Type a message, or .help.\n> ")
    t.edit("tell me\r")
    t.until(r"tell me\n.")
    t.interrupt()
    t.until(r"\(Stopped\.\)\n> ")
    t.edit("half a lüne")
    t.until(r"> half a lüne")
    t.interrupt()
    t.until(r"\n> $")
    t.edit("/save kept\x7f\x7f\x7f\x7f/dev/null\r")  # editing
    t.until(r"2 messages saved to /dev/null\n> ")
    t.edit("\x10\r")  # Ctrl-P: the message before
    t.until(r"2 messages saved to /dev/null\n> ")
    t.edit("/bogus\r")
    t.until(r"/bogus is not a command; /help lists them\n> ")
    t.edit("/sav\r")
    t.until(r"/sav is not a command; did you mean /save\?\n> ")
    t.edit("\x04")
    t.until(r"\n$")
    check(t.status() == 0, "Ctrl-D ends a chat at a terminal with success")
    check(t.raw.count("\x1b[?2004h") == t.raw.count("\x1b[?2004l") == 1, "pasting is bracketed, then not")
    history = Path(TEMPORARY, "quipu/history")
    check("tell" in history.read_text() and history.stat().st_mode & 0o77 == 0, "history")


def progress():
    """Long work is shown at a terminal, and what was shown goes away."""
    prompt = Path(TEMPORARY, "long")
    prompt.write_text("the cat in the hat " * 300)
    t = Terminal("run", "-m", MODEL, "-c", "4000", "--chunk", "64", "-f", str(prompt), "-n", "2", "--raw")
    t.until(r"generated 2 tokens")
    check(t.status() == 0, "a long prompt")
    check("reading the prompt   0%  0 of " in t.raw, t.raw[:500])
    check("reading" not in t.screen.text(), t.screen.text())
    # At a terminal the answer has no control characters, and no line reaches its edge.
    t = Terminal("run", "-m", MODEL, "-p", "the", "-n", "60", "--temp", "1.5", "-s", "5", "--ignore-eos", columns=30)
    t.until(r";\s(stop|length)\n")
    answer = t.screen.text().split("\nprompt ")[0]
    check(all(len(line) < 30 for line in answer.splitlines()), answer)
    check(t.status() == 0, "run at a terminal")
    t = Terminal("bench", "-m", MODEL, "-p", "8", "-n", "4", "-r", "2")
    t.until(r"\| tg4 \|")
    check("pp8: run 2 of 2" in t.raw and "tg4: run 1 of 2" in t.raw, t.raw)
    check("run 2" not in t.screen.text(), t.screen.text())
    check(t.status() == 0, "bench at a terminal")
    # Standard input at a terminal ends with one Ctrl-D.
    t = Terminal("tokenize", "-m", MODEL)
    t.until(r"end it with Ctrl-D")
    os.write(t.fd, b"the\n\x04")
    t.until(r"\d+ \d+\n$", seconds=5)
    check(t.status() == 0, "tokenize at a terminal")


def editing():
    t = Terminal("chat", "-m", MODEL, "-n", "2", columns=30)
    t.until(r"/help\.\n> ")
    # Lines pasted together are one message, as are lines broken by Alt-Enter or a backslash.
    t.edit("\x1b[200~one\rtwo\n\tthree\r\n\x1b[201~")
    t.until(r"> one\n\. two\n\.     three$")
    t.edit("\x1b\rfour\\\r5\r")
    t.until(r"three\n\. four\n\. 5\n(.|\n)*Stopped after 2 tokens(.|\n)*\n> $")
    # A message wider than the terminal is drawn anew for another width.
    t.edit("abcdefghijklmnopqrstuvwxyz0123456789")
    t.until(r"> abcdefghijklmnopqrstuvwxyz01\n  23456789$")
    t.seen -= 1
    t.resize(50)
    t.until(r"> abcdefghijklmnopqrstuvwxyz0123456789$")
    t.edit("\x01/set seed 7 \x0b\r")  # Ctrl-A, Ctrl-K
    t.until(r"seed is 7\.\n> ")
    # Completion: what is common, then a list.
    t.edit("/se\t")
    t.until(r"> /set $")
    t.edit("see\t8\r")
    t.until(r"seed is 8\.\n> ")
    t.edit("/sch\tthr\tda\t\r")
    t.until(r"schedule is now: throughput, dag\.\n> ")
    t.edit("/s\t")
    t.until(r"/set .*/system .*/save .*/stats")
    kept = Path(TEMPORARY, "typed.json")
    kept.write_text("before")
    t.edit(f"\x15/save {TEMPORARY}/ty\t\r")
    t.until(r"exists\.[^$]*\[y/N\] ")
    t.edit("n")
    t.until(r"Nothing was saved\.\n> ")
    check(kept.read_text() == "before", "what a person wants to keep stays")
    t.edit("\x12sav\r")  # Ctrl-R
    t.until(r"exists\.[^$]*\[y/N\] ")
    t.edit("y")
    t.until(r"2 messages saved")
    check([m["content"] for m in json.loads(kept.read_text())][0] == "one\ntwo\n\tthree\nfour\n5", "lines")
    t.edit("/regen\r")
    t.until(r"/regen\n(.|\n)*Stopped(.|\n)*\n> $")
    t.edit("/bye\r")
    check(t.status() == 0, "/bye ends a chat")
    # The next chat knows what was typed in this one.
    t = Terminal("chat", "-m", MODEL)
    t.until(r"> ")
    t.edit("\x10\x10\x10")
    t.until(r"> /save ")
    t.edit("\x15")
    os.kill(t.pid, signal.SIGTERM)
    check(t.status() == -signal.SIGTERM, "SIGTERM ends a chat")
    check(termios.tcgetattr(t.fd)[3] & termios.ICANON, "and gives the terminal back as it was")
    # A terminal without escape sequences is read line by line.
    t = Terminal("chat", "-m", MODEL, "-n", "2", kind="dumb")
    t.until(r"> $")
    os.write(t.fd, b"a\\\n")
    t.until(r"\. $")
    os.write(t.fd, b"b\n")
    t.until(r"Stopped after 2 tokens")
    os.write(t.fd, b"/exit\n")
    check(t.status() == 0 and "\x1b" not in t.raw, "a dumb terminal")


def main():
    try:
        for part in (answers, speculation, texts, bad_input, models_that_are_refused, windows, without_a_gpu,
                     environment_and_precedence, writing_fails,
                     conversion, conversation, traces, interrupts, terminal, editing, progress):
            start = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - start:.1f} s")
    finally:
        shutil.rmtree(TEMPORARY)
    return failures > 0


sys.exit(main())
