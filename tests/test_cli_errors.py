#!/usr/bin/env python3
"""The program where something is wrong: options, models, devices, the environment, full disks. See cli_process.py."""
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from cli_process import HERE, MODEL, MODELS, TEMPORARY, check, expect, quipu, run_parts


def bad_input():
    run = ["run", "-m", MODEL]
    expect(2, "usage: quipu COMMAND")
    expect(2, "did you mean 'chat'", "chta")
    expect(2, "unknown command 'quux'", "quux")
    expect(2, "a command before -m, as in quipu run -m", "-m", MODEL)
    expect(2, "did you mean --temp?", *run, "--tmep", "1")
    expect(2, "--temp: expected a number from 0 to 100, found 'hot'", *run, "--temp", "hot")
    expect(2, "-n: expected an integer", *run, "-n", "-1")
    expect(2, "QUIPU_TOP_P: expected a number from 0 to 1", *run, environment={"QUIPU_TOP_P": "7"})
    expect(2, "a model of the hub is OWNER/NAME", "run", "-hf", "repo", "-p", "hi")
    expect(2, "exclude each other", *run, "-hf", "o/m", "-p", "hi")
    expect(2, "has no -ngl 20: a model runs whole on one device", *run, "-ngl", "20")
    expect(2, "-ctx: expected an integer", *run, "-ctx", "many")
    expect(2, "did you mean --temp?", *run, "-temp", "1")
    expect(2, "of `quipu bench` it is --output csv or json", "bench", "-m", MODEL, "--format", "csv")
    expect(1, "the plan padded runs on the CPU, but --device cuda", *run, "--plan", "padded", "--device", "cuda")
    expect(1, "no file or model called \"llama3.2\"; did you mean llama3.2:1b?", "info", "-m", "llama3.2")
    expect(1, "Hugging Face with this name is hf:Owner/Model", "run", "-m", "Owner/Model", "-p", "hi")
    expect(1, "nosuch.gguf: cannot open", "plan", "-m", "nosuch.gguf")
    expect(2, "the name of the model is empty", "info", "-m", "")
    expect(2, "has no command 'push'", "push", "x")
    expect(2, "the prompt is given by -p already", "run", MODEL, "one", "-p", "two")
    for origin in ["page", "https://", "https://page/"]:
        expect(2, f"found '{origin}'", "serve", "-m", MODEL, "--port", "0", "--cors-origin", origin)
    expect(2, "--help takes no value, found 'x'", *run, "--help=x")
    expect(1, "expected at most 268435456 bytes", *run, "-f", "/dev/zero")
    expect(2, "standard input has no text", *run, stdin=b"")
    expect(2, "/dev/null has no text", *run, "-f", "/dev/null")
    expect(2, "run has no --layers, which is an option of ", *run, "-p", "a", "--layers", "1")
    expect(2, "--api-key-file FILE", "serve", "-m", MODEL, "--api-key", "secret")
    expect(2, "unexpected 'more'", "help", "run", "more")
    expect(2, "did you mean rms_norm?", "ops", "describe", "rmsnorm")
    expect(1, "nosuch.json: cannot be opened", "ops", "import", "nosuch.json")
    expect(2, "a port from 1 to 65535", "load", "--url", "http://localhost:65536")
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
    expect(1, "fetch the default one with", "run", "-p", "a")
    expect(2, "no preset", "run", "-m", "synthetic:huge", "-p", "1")
    expect(2, "the model has no vocabulary", "run", "-m", "synthetic:tiny", "-p", "word")
    expect(2, "the model has no vocabulary", "logits", "-m", "synthetic:tiny", "-p", "word")
    expect(2, "ids 0 to 287", "logits", "-m", MODEL, "--ids", "1,288")
    expect(2, "the prompt is empty", "logits", "-m", MODEL, "--ids", "")
    expect(2, "did you mean 1.rope?", "diff", "-m", MODEL, "--stop-after", "1.ropes")
    expect(2, "a machine is one of", "diff", "-m", MODEL, "--b", "hope")
    expect(2, "the prompt is empty", "diff", "-m", MODEL, "-p", "")
    expect(2, "the model has no vocabulary", "diff", "-m", "synthetic:tiny", "-p", "word")
    expect(2, "found \"x\"", "detokenize", "-m", MODEL, stdin=b"1 x")
    expect(1, "not valid JSON at line 1, column 1; expected an array of messages", "template", "-m", MODEL, stdin=b"{")
    expect(1, "a text in it holds a NUL character (\\u0000); remove it\n", "run", "-m", MODEL, stdin=b"a\0b")
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
    expect(2, "cannot be combined with --measure or --compare", "schedule", "-m", MODEL, "--compare", "--list")
    expect(2, "cannot be combined with --compare", "schedule", "-m", MODEL, "--compare", "--plan", "flashinfer")
    expect(2, "on CPU threads", "schedule", "-m", MODEL, "--compare", "--load", "x", "--device", "cuda")
    expect(2, "has no effect on --measure", "schedule", "-m", MODEL, "--measure", "--load", "x")
    expect(2, "has no effect on threads", "trace", "-m", MODEL, "--ids", "1,2", "--tracks", "3")
    expect(1, "the plan padded has no schedule", "schedule", "-m", MODEL, "--plan", "padded")
    expect(2, "cannot be combined with --setting throughput", "schedule", "-m", MODEL, "--sums",
           "--setting", "throughput")


def options_and_files():
    """Options that need another, a home that is not there, files that hold something else."""
    run, load = ["run", "-m", MODEL], ["load", "--url", "http://localhost:1", "--model", "m"]
    homeless = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME", "HF_HUB_CACHE"), "")
    expect(2, "without HOME there is no cache to look in; name one with -m", "run", "-p", "a", environment=homeless)
    expect(2, "--last: without HOME there is no cache", "ops", "prompt", "rms_norm", "--last", environment=homeless)
    expect(2, "--measure: without HOME there is no cache", "schedule", "-m", MODEL, "--measure", environment=homeless)
    expect(2, "there is no folder for models", "pull", "a/b", environment=homeless)
    expect(2, "name one operator, or give --all;", "ops", "describe")
    expect(1, "runs on the CPU: leave --device cuda out", "plan", "-m", MODEL, "--plan", "padded", "--device", "cuda")
    expect(2, "--ranks-by mpi needs to know how many", *run, "-p", "a", "--ranks-by", "mpi")
    expect(2, "is read from standard input; give the prompt with -p or -f", *run, "--json-schema", "-", stdin=b"{}")
    expect(2, "--dump NAMES says which tensors are kept", *run, "-p", "a", "--dump", "logits")
    expect(2, "adapters can be given, found more", *run, "-p", "a", *["--lora", "x"] * 65)
    expect(1, ": File name too long", *run, "-p", "a", "--lora", "x" * 5000)
    expect(2, ": the path is too long", "info", "-m", "~/" + "x" * 5000)
    expect(2, "the path of the model has more than ", "info", "-m", "x" * 5000)
    other = Path(TEMPORARY, "template")
    other.write_text("x" * (1 << 20 | 1))
    expect(1, "a chat template of 1048577 bytes: at most 1048576 are read", "serve", "-m", MODEL, "--port", "0",
           "--chat-template", str(other))
    other.write_text("a synthetic:tiny\na synthetic:tiny\n")
    expect(1, ":2: the name a is there twice", "serve", "--models", str(other), "--port", "0")
    other = Path(TEMPORARY, "latin")
    other.write_bytes(b"\xff" * 99)
    expect(1, "the text is not UTF-8", *load, "--text", str(other))
    other.write_bytes(b"\nkey\n")
    expect(1, "the first line holds no key", *load, "--api-key-file", str(other))
    kernel = Path(TEMPORARY, "nothing.c")
    kernel.write_text('#include "quipu_kernel.h"\nvoid rms_norm_kernel(const op_call *call)\n{\n    (void)call;\n}\n')
    status, _, err = quipu("ops", "check", "rms_norm", "--kernel", str(kernel))
    check(status == 1 and re.search(r"\d+ checks did not pass", err), err)


def data_and_costs():
    """Data sets, traces of kernels and costs of passes that hold something else."""
    folder, file = Path(TEMPORARY, "set"), Path(TEMPORARY, "set.json")
    for said, text in (("expected a JSON object", "[]"), ("it holds a byte of 0", "{}\0"), ("it has no traces; expected a data set", "{}")):
        file.write_text(text)
        expect(1, said, "ops", "leaderboard", str(file))
    (folder / "/".join("abcdefghijkl") / "x").mkdir(parents=True)
    expect(1, "folders are nested more than ", "ops", "leaderboard", str(folder))
    shutil.rmtree(folder)
    expect(2, 'there is no rule "zzzzzz"; there are ', "plan", "-m", "synthetic:tiny", "--rules", "-zzzzzz")
    costs = Path(TEMPORARY, "costs.csv")
    head = "model,device,gigabytes,threads,parallel,depth,test,tokens_per_second,deviation,gigabytes_per_second\n"
    row = lambda depth, test: f"m,cpu,1,1,1,{depth},{test},100,0,0\n"
    expect(2, " needs --simulate COSTS", "load", "--servers", "2")
    for said, text in (("expected a row of quipu bench -o csv", head + "nothing\n"),
                       ("of the same size at different depths; measure them with", head + row(0, "pp8") + row(0, "pp64") + row(0, "tg8")),
                       ("-p N -d DEPTH", head + row(0, "pp8") + row(0, "pp64") + row(0, "tg8"))):
        costs.write_text(text)
        expect(1, said, "load", "--simulate", str(costs), "-n", "2", "--rate", "1")


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
    expect(2, 'there is no rule "norm_ip"; did you mean norm_up?', "plan", "-m", "synthetic:tiny", "--rules", "-norm_ip")
    expect(2, "each with + or -", "run", "-m", "synthetic:tiny", "--rules", "norm_up", "-p", "a")
    refused("which only the plan paged computes", slides[0], "run", "--plan", "flashinfer", *slides[1:])
    refused("positions is not taken apart", slides[0], "trace", "--exec", "serial", "--tracks", "2", *slides[1:])
    refused('"model.layers.1.', {"num_hidden_layers": 1}, "run", "-p", "a")
    refused('"num_local_experts" is set', {"num_local_experts": 8}, "logits", "--ids", "1")


def experts_that_do_not_fit():
    """Of gpt-oss: sinks of the wrong size, a number of experts that the tensors do not have, a limit below 0."""
    folder = Path(TEMPORARY, "experts")
    shutil.copytree(MODELS / "gpt-oss", folder)
    config = json.loads((folder / "config.json").read_text())

    def refused(said, changes):
        (folder / "config.json").write_text(json.dumps(config | changes))
        expect(1, said, "info", "-m", str(folder))

    refused('"model.layers.0.self_attn.sinks" must be BF16 [8]',
            {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8})
    refused('"model.layers.0.mlp.router.weight" must be BF16 [8, 64]', {"num_local_experts": 8})
    refused('"swiglu_limit" must be at least 0', {"swiglu_limit": -1})


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
    kernel = ["ops", "check", "rms_norm", "--kernel", str(HERE.parent / "examples/rms_norm.cu")]
    expect(1, "give --unconfined", *kernel)
    expect(1, "takes an NVIDIA GPU", *kernel, "--unconfined")
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
    likely = {"temperature": "0.8", "top_k": "40", "top_p": "0.95", "min_p": "0.05"}
    found = settings()
    check({name: found[name] for name in likely} == {n: f"{v} (default)" for n, v in likely.items()}, found)
    check(found["repetition_penalty"] == "1 (default)", found)
    found = settings("--temp", "1", "--top-k", "0")
    check(found["temperature"] == "1 (command line)" and found["top_k"] == "0 (command line)", found)
    check(found["top_p"] == "0.95 (default)", "options replace only their own default")
    found = settings("--temp", "0.5", environment={"QUIPU_TOP_K": "9"}, model=str(own))
    check(found["temperature"] == "0.5 (command line)", found)
    check(found["top_k"] == "9 (environment)", found)
    found = settings(model=str(own))
    check(found["temperature"] == "0.25 (generation_config.json)", found)
    check(found["top_k"] == "7 (generation_config.json)", found)
    check(found["top_p"] == "1 (default)", "a model with settings has no others")
    beside.write_text('{"do_sample": false}')
    found = settings(model=str(own))
    check(found["temperature"] == "0 (generation_config.json)" and found["top_k"] == "40 (default)", found)
    beside.write_text('{"temperature": 0.25}')
    found = settings("--temp", "1", model=str(own))
    check(found["top_k"] == "0 (default)", "an option does not change what the model's files leave open")
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


sys.exit(run_parts(bad_input, options_and_files, data_and_costs, models_that_are_refused, experts_that_do_not_fit, windows, without_a_gpu, environment_and_precedence, writing_fails))
