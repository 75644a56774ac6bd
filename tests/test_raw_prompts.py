#!/usr/bin/env python3
"""Prompts without the model's chat template: control tokens in them, text between two others, and templates that are given in
place of the model's. Ends with "N passed, N failed"."""
import sys
import tempfile
import time

from scripted_model import scripted_model
from server_process import Server, run_tests, test

KINDS = {
    "qwen": (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|repo_name|>"), "<|fim_prefix|>a(<|fim_suffix|>)b<|fim_middle|>"),
    "starcoder": (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>a(<fim_suffix>)b<fim_middle>"),
    "codellama": (("<PRE>", "<SUF>", "<MID>", "<EOT>"), "<PRE>a(<SUF>)b<MID>"),
    "mistral": (("[PREFIX]", "[SUFFIX]"), "[SUFFIX])b[PREFIX]a("),
}
TEMPLATE = "{% for m in messages %}<|say|>{{ m.content }}{% endfor %}{# date_string #}{{ date_string }}"
PROMPT = "<|say|>"  # one control token, or seven bytes


def model(folder, marks=()):
    return scripted_model(folder, TEMPLATE, {"say": "Hello there."}, controls=marks)


def counts(s):
    """How many tokens a raw prompt has at each door, and a message."""
    openai = s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "temperature": 0})[1]
    llama = s.post("/completion", {"prompt": PROMPT, "n_predict": 3, "temperature": 0})[1]
    mixed = s.post("/completion", {"prompt": [65, PROMPT], "n_predict": 3})[1]["tokens_evaluated"] - 1
    ollama = s.post("/api/generate", {"prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 3}})[1]
    templated = s.post("/api/generate", {"prompt": PROMPT, "stream": False, "options": {"num_predict": 1}})[1]["prompt_eval_count"]
    message = s.post("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": PROMPT}]})[1]["input_tokens"]
    assert templated == message, (templated, message)
    return {openai["usage"]["prompt_tokens"], llama["tokens_evaluated"], mixed, ollama["prompt_eval_count"]}, message, llama["content"]


@test
def control_tokens_of_raw_prompts(_):
    with tempfile.TemporaryDirectory() as top:
        path = model(f"{top}/m")
        today = len(time.strftime("%d %b %Y"))
        for arguments, raw in (((), 1), (("--raw-special", "off"), 7), (("--insecure",), 7), (("--raw-special", "on", "--insecure"), 1)):
            with Server(*arguments, model=path) as s:
                prompts, message, text = counts(s)
                assert prompts == {raw}, (arguments, prompts)
                assert message == 1 + 7 + today, message  # the template's token, the text, and the day
                assert raw == 7 or text.startswith("Hello"), text


@test
def keys_and_control_tokens(_):
    with tempfile.TemporaryDirectory() as top:
        keys = f"{top}/keys"
        with open(keys, "w") as file:
            file.write("k\n")
        with Server("--api-key-file", keys, model=model(f"{top}/m")) as s:
            status, reply = s.post("/completion", {"prompt": PROMPT, "n_predict": 1}, Authorization="Bearer k")
            assert status == 200 and reply["tokens_evaluated"] == 7, reply


@test
def text_between_two_others(_):
    with tempfile.TemporaryDirectory() as top:
        for name, (marks, written) in KINDS.items():
            with Server(model=model(f"{top}/{name}", marks)) as s:
                status, reply = s.post("/infill", {"input_prefix": "a(", "input_suffix": ")b", "n_predict": 2})
                assert status == 200 and reply["prompt"] == written, (name, reply)
                begun = s.post("/infill", {"input_prefix": "a(", "input_suffix": ")b", "prompt": "xy", "n_predict": 2})[1]["prompt"]
                assert begun == written + "xy", begun
                length = reply["tokens_evaluated"]
                reply = s.post("/v1/completions", {"prompt": "a(", "suffix": ")b", "max_tokens": 2})[1]
                assert reply["usage"]["prompt_tokens"] == length, (name, reply)
                reply = s.post("/api/generate", {"prompt": "a(", "suffix": ")b", "stream": False, "options": {"num_predict": 2}})[1]
                assert reply["prompt_eval_count"] == length, (name, reply)
                marked = s.post("/infill", {"input_prefix": marks[0], "input_suffix": ")b", "n_predict": 2})[1]
                assert marked["tokens_evaluated"] == length - 2 + len(marks[0]), "a mark in a client's text is a token"
        with Server(model=f"{top}/qwen") as s:
            files = [{"filename": "f.py", "text": "x = 1"}]
            reply = s.post("/infill", {"input_prefix": "a(", "input_suffix": ")b", "input_extra": files, "n_predict": 2})[1]
            assert reply["prompt"].endswith("<|file_sep|>f.py\nx = 1\n<|file_sep|>current\n" + KINDS["qwen"][1]), reply


@test
def a_model_without_marks(s):
    for path, body, name in (("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
                             ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
                             ("/v1/completions", {"prompt": ["a", "b"], "suffix": "b"}, "prompt")):
        status, reply = s.post(path, body)
        assert status == 400 and reply["error"]["param"] == name, reply
    status, reply = s.post("/api/generate", {"prompt": "a", "suffix": "b"})
    assert status == 400 and "marks" in reply["error"], reply


@test
def a_chat_template_that_is_given(_):
    with tempfile.TemporaryDirectory() as top:
        path, file = model(f"{top}/m"), f"{top}/other.jinja"
        with open(file, "w") as out:
            out.write("{% for m in messages %}({{ m.content }}){% endfor %}")
        for given in (file, "{% for m in messages %}({{ m.content }}){% endfor %}"):
            with Server("--chat-template", given, model=path) as s:
                assert s.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]})[1]["prompt"] == "(x)"
        s = Server("--chat-template", "{% for m in", model=path, wait=False)
        assert s.process.wait(60) and "--chat-template" in s.process.stderr.read(), "a template that is broken"


sys.exit(run_tests())
