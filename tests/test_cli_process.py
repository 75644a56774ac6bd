#!/usr/bin/env python3
"""The program as a person or a script uses it: answers, files, conversations, traces. See cli_process.py."""
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

from cli_process import (HOME, MODEL, MODELS, QUIPU, TEMPORARY, check, expect, golden, quipu, run_parts,
                         vocabulary_only)


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
    listed = ["logits", "-m", "synthetic:tiny", "--json"]
    check(quipu(*listed, "-p", "1,2,3")[1] == quipu(*listed, "--ids", "1,2,3")[1] != "", "a prompt of ids")
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
    layer = quipu("info", "-m", str(bare), "--module", "model.layers.1")[1]
    check(layer.splitlines()[1].startswith("LlamaDecoderLayer(") and "(q_proj): Linear" in layer, layer)
    leaf = quipu("info", "-m", str(bare), "--module", "lm_head", "--json")[1]
    check(json.loads(leaf)["modules"] == [modules[-1]], leaf)
    expect(2, 'no module "model.layers.2"', "info", "-m", str(bare), "--module", "model.layers.2")
    name, _, config = quipu("info", "-m", str(bare), "--config")[1].partition(" ")
    printed = json.loads(config)
    own = json.loads((bare / "config.json").read_text())
    check(name == "LlamaConfig" and len(printed) == 26 and own.items() <= printed.items(), config)
    check(printed["head_dim"] == 8 and list(printed) == sorted(printed) and '"rope_theta": 10000.0' in config, config)
    scaled = json.loads(quipu("info", "-m", "synthetic:llama-3.2-1b", "--config")[1].partition(" ")[2])
    check(scaled["rope_scaling"]["factor"] == 32 and scaled["rope_scaling"]["rope_type"] == "llama3", scaled)
    tokens = json.loads(quipu("info", "-m", MODEL, "--config")[1].partition(" ")[2])
    check((tokens["bos_token_id"], tokens["num_hidden_layers"], tokens["rms_norm_eps"]) == (1, 2, 1e-5), tokens)
    names = [op["name"] for op in json.loads(quipu("ops", "list", "--of", "llama-3.1-8b", "--plan", "flashinfer",
                                                   "--json")[1])]
    check(names[:3] == ["embedding", "rms_norm", "add_rms_norm"] and "paged_decode" in names, names)
    check("rms_norm" in quipu("ops", "list", "--of", MODEL)[1], "ops list --of a file")
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
    check(set(found["sandbox"]) == {"seccomp", "landlock", "namespaces"}, "doctor says what it can confine")
    check("features" in quipu("doctor")[1] and "sandbox  " in quipu("doctor")[1], "doctor")
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
    Path(f"{planted}.new").symlink_to(target)
    check(chat(f"hi\n/save {planted}\n")[0] != 0 and target.read_text() == "mine", "a planted link")
    Path(f"{planted}.new").unlink()
    check(chat(f"hi\n/save {planted}\n")[0] == 0, "without it")
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
    kept.write_text('[{"role": "user"}]')
    err = chat(f"/load {kept}\n/thoughts x\n/edit\n/copy\nhi\n/copy\n/set zzzzzzzz 1\n/schedule quick\n/save {'x' * 5000}\n")[2]
    for said in ('message 0 must have a "role" and a "content" text', "/thoughts takes show or fold, not 'x'", "/edit needs a terminal",
                 "There is no answer yet to copy", "/copy needs a terminal; here the answer is on standard output",
                 "There is no setting zzzzzzzz: /set lists them.", "/schedule: expected latency or throughput", "xxx...: the path is too long",
                 "some commands or questions failed: see above"):
        check(said in err, f"{said!r} in {err}")
    check(chat("")[0] == 0, "an empty pipe")
    status, _, err = chat("a\0b\n")
    check(status == 2 and "holds a NUL" in err, err)


def cut_model():
    """A model file that is cut while it is mapped ends the program with a sentence."""
    model = Path(TEMPORARY, "cut.gguf")
    model.write_bytes((MODELS / MODEL).read_bytes())
    run = subprocess.Popen([QUIPU, "chat", "-m", str(model), "-n", "3", "--exec", "reference"], env=HOME, text=True,
                           errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdin.write("hi\n")
    run.stdin.flush()
    run.stdout.read(1)  # the model is open, and has answered
    os.truncate(model, 4096)
    _, err = run.communicate("hi\n", timeout=60)
    check(run.returncode == 1 and "cut.gguf: the file was cut" in err, f"{run.returncode} {err}")


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
    expect(2, "the model has no vocabulary", "trace", "-m", "synthetic:tiny", "-p", "hi")
    expect(2, "the prompt is empty", "trace", "-m", "synthetic:tiny", "--ids", "")
    expect(2, "from 1 to 65536", *trace, "-n", "0")


def described_steps():
    """What `trace --describe` says of each step is what a trace in parts has, of a config.json too; and in parts
    of threads a product is cut for all workers."""
    config = Path(TEMPORARY) / "described.json"
    shutil.copy(MODELS / "llama-text/config.json", config)
    path = Path(TEMPORARY) / "parts.json"
    told, step = {}, ""
    for line in quipu("trace", "-m", str(config), "--describe")[1].splitlines()[1:]:
        if not line.startswith("---"):
            step = line[:15].strip() or step
            told.setdefault(step, []).append(line[83:99].split()[0] if step != "adjust_logits" else "adjust_logits")
    status, _, err = quipu("trace", "-m", str(config), "--ids", "1,2,3", "-n", "2", "--exec", "serial", "--tracks", "1",
                           "-o", str(path))
    check(status == 0 and "made up" in err, err)
    ran = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X" and event["cat"] == "work":
            ran.setdefault(event["args"]["step"].split()[0], set()).add(event["name"])
    for step, kinds in told.items():
        if step in ran:
            check(set(kinds) == ran[step], f"{step}: described as {kinds}, ran {ran[step]}")
    check(ran.keys() - told.keys() <= {"sample"} and {"attention", "ffn_up", "lm_head"} <= ran.keys(), ran.keys())
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 4096}))
    status, _, err = quipu("trace", "-m", f"synthetic:{config}:F32", "--ids", "1,2,3", "-n", "2", "-t", "4", "--parts",
                           "--layers", "1", "-o", str(path))
    # Which worker runs a slice is left to chance: one that waits takes another's.
    cuts = [event["args"]["inputs"] for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"
            and event["name"] == "Linear" and event["args"]["step"].split()[0] == "lm_head"]
    check(status == 0 and cuts == 8 * ["1x24, 1024x24"], f"a product cut for four workers, in two passes: {cuts} {err}")
    expect(2, "cannot make type", "trace", "-m", f"synthetic:{config}:Q9", "--ids", "1")
    expect(2, "multiple of 32 elements", "trace", "-m", f"synthetic:{config}:Q8_0", "--ids", "1")


def own_queues():
    """Instructions as a list with edges; queues that another program made of them; files that outlive a context,
    a chunk and a type of the cache."""
    schedule = ["schedule", "-m", "synthetic:tiny", "--workers", "2"]
    listed = json.loads(quipu(*schedule, "--linear", "--json")[1])
    nodes, end = listed["nodes"], listed["end"]
    check([node["id"] for node in nodes] == list(range(listed["instructions"])), "ids")
    for node in nodes:
        check(all(need < node["id"] and node["id"] in nodes[need]["children"] for need in node["needs"]), node)
        longest = max((nodes[child]["priority_ns"] for child in node["children"]), default=0)
        check(node["priority_ns"] == node["cost_ns"] + (longest + listed["signal_ns"] if node["children"] else 0), node)
    check(end["needs"] == [node["id"] for node in nodes if not node["children"]] and end["opcode"] == "noop", end)
    product = next(node for node in nodes if node["step"] == "attn_qkv")
    check(product["operands"] == {"x": "x_", "weight": "attn_q", "out": "attn[0:256]"}, product)
    dag = json.loads(quipu(*schedule, "--linear", "--json", "--assign", "dag")[1])["nodes"]
    check([node["opcode"] for node in dag] == [node["opcode"] for node in nodes], "ids do not depend on --assign")
    status, out, err = quipu(*schedule, "--linear")
    check(status == 0 and out.splitlines()[-1].split()[-1] == "end", out[-300:] + err)

    queues, saved = Path(TEMPORARY) / "queues.json", str(Path(TEMPORARY) / "own.schedule")
    run = ["run", "-m", "synthetic:tiny", "-p", "1,2,3", "-n", "8"]
    example = subprocess.run([sys.executable, Path(__file__).resolve().parent.parent / "examples/assign.py", "synthetic:tiny", "2", saved],
                             capture_output=True, text=True, env=HOME | {"QUIPU": QUIPU}, check=False)
    check(example.returncode == 0, example.stderr)
    text = quipu(*run)[1]
    check(quipu(*run, "--schedule", saved)[1] == text, "the example's queues")
    if importlib.util.find_spec("numpy") is None:
        print("skipped: examples/interpreter.py, because NumPy is missing")
    for workers in ("1", "3"):
        if importlib.util.find_spec("numpy"):
            example = subprocess.run([sys.executable, Path(__file__).resolve().parent.parent / "examples/interpreter.py",
                                      str(MODELS / "llama-text"), "1,5,9,20", workers], capture_output=True, text=True,
                                     env=HOME | {"QUIPU": QUIPU}, check=False)
            check(example.returncode == 0 and "likeliest 47, quipu's 47" in example.stdout, example.stdout + example.stderr)
    for others in (["-c", "100", "--chunk", "16"], ["--kv-type", "F32", "-c", "2000"]):
        check(quipu(*run, *others, "--schedule", saved)[1] == quipu(*run, *others)[1] != "", f"with {others}")
    status, out, err = quipu(*schedule, "--kv-type", "F32", "--save", saved)
    check(status == 0 and quipu(*run, "--schedule", saved)[1] == text, err)
    expect(1, "made for another model", "run", "-m", "synthetic:tiny-qwen3", "-p", "1", "--schedule", saved)
    ids = [node["id"] for node in nodes]
    for wrong, words in (([ids, []], None), ([ids], "with 2 queues"), ([ids, [0]], "once"), ([ids[1:], []], "expected all"),
                         ([ids[::-1], []], "queues.json"), ([ids[:-1], [0.5]], "queue 1 has the id 0.5"), (7, "queues")):
        queues.write_text(json.dumps({"queues": wrong}))
        status, out, err = quipu(*schedule, "--queues", str(queues), "--verify")
        check(status == 0 if words is None else status != 0 and words in err, f"queues {str(wrong)[:40]}: {out} {err}")
    expect(2, "cannot be combined", *schedule, "--linear", "--compare")
    expect(2, "--tune needs --save", *schedule, "--tune")
    check("a CPU makes one token at a time" in quipu(*run, "--eos-interval", "16", "--device", "cpu")[2], "--eos-interval")
    check("guessed for a small CPU" in quipu("schedule", "-m", "synthetic:tiny", "--workers", "1000")[1], "the machine")


def operators():
    """Rows are in a file when they are known, so that a run which is cut off has told something."""
    for command in (["ops", "check"], ["ops", "bench", "rope", "linear", "-r", "1", "-t", "1"]):
        run = subprocess.Popen([QUIPU, *command], cwd=MODELS, env=HOME, stdout=subprocess.PIPE, text=True)
        header, first = run.stdout.readline(), run.stdout.readline()
        check(run.poll() is None and "operator" in header and "PASSED" in first, f"{command}: {header}{first}")
        run.kill()
        run.communicate()
    rows = quipu("ops", "check", "add", "rope", "silu_and_mul")[1].splitlines()
    ends = {row.index("PASSED") for row in rows if "PASSED" in row}
    check(len(ends) == 1 and rows[-1].endswith("0 failed"), rows)


sys.exit(run_parts(operators, answers, speculation, texts, conversion, conversation, cut_model, traces, described_steps, own_queues))
