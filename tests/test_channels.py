#!/usr/bin/env python3
"""Messages in channels, as gpt-oss writes them: analysis is thoughts, messages to tools are calls, the rest is content,
streamed and not; forms and forced calls follow a header. Ends with "N passed, N failed"."""
import json
import sys
import tempfile

from scripted_model import scripted_model
from server_process import Server, run_tests, test

NEXT = "<|end|><|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
SCRIPTS = {
    "talks": f"{ANALYSIS}They greet me.{NEXT}{FINAL}Hello, you there.",
    "calls": f"{ANALYSIS}I need a tool.{NEXT}<|channel|>commentary to=functions.look <|constrain|>json<|message|>{{\"city\": \"Ulm\"}}",
}
CONTROLS = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>")
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}{{ m.thinking }}<|end|>{% endfor %}"
    "{{ tools | tojson if tools else '' }}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{# <|channel|>analysis<|message|> and <|channel|>final<|message|> #}")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"], "additionalProperties": False}}}]
HELLO = [{"role": "user", "content": "hello"}]


class Models:
    """A server for each script, begun once: its text follows the prompt's last byte."""

    folder = tempfile.TemporaryDirectory()
    servers = {}

    @classmethod
    def get(cls, name):
        if name not in cls.servers:
            path = scripted_model(f"{cls.folder.name}/{name}", TEMPLATE, {name: SCRIPTS[name]}, (FINAL, *CONTROLS), CONTROLS, after=ord("t"))
            cls.servers[name] = Server("-c", "2048", model=path)
        return cls.servers[name]


def chat(s, stream, **body):
    """The answer's thoughts, content, calls as (name, arguments), and finish reason."""
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 300, **body}
    if not stream:
        status, reply = s.post("/v1/chat/completions", body)
        assert status == 200, reply
        parts, reason = [reply["choices"][0]["message"]], reply["choices"][0]["finish_reason"]
    else:
        choices = [e["choices"][0] for e in s.stream("/v1/chat/completions", body)[:-1]]
        parts, reason = [c["delta"] for c in choices], next(c["finish_reason"] for c in choices if c["finish_reason"])
    functions = [c["function"] for p in parts for c in p.get("tool_calls") or []]
    names = "".join(f.get("name") or "" for f in functions)
    arguments = "".join(f.get("arguments") or "" for f in functions)
    return ("".join(p.get("reasoning_content") or "" for p in parts), "".join(p.get("content") or "" for p in parts),
            (names, arguments), reason)


@test
def channels_stand_apart(_):
    for stream in (False, True):
        assert chat(Models.get("talks"), stream) == ("They greet me.", "Hello, you there.", ("", ""), "stop")
        called = chat(Models.get("calls"), stream, tools=TOOLS)
        thoughts, content, (tool, arguments), reason = called
        assert (thoughts, content, tool, reason) == ("I need a tool.", "", "look", "tool_calls"), called
        assert json.loads(arguments) == {"city": "Ulm"}, called


@test
def forms_and_forced_calls_follow_a_header(_):
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"enum": ["yes"]}}}
    for stream in (False, True):
        thoughts, content, _, _ = chat(Models.get("talks"), stream, response_format=form)
        assert (thoughts, content) == ("They greet me.", '"yes"'), (thoughts, content)
        thoughts, content, _, _ = chat(Models.get("talks"), stream, response_format=form, think=False)
        assert (thoughts, content) == ("", '"yes"'), (thoughts, content)
        for name in SCRIPTS:
            thoughts, content, (tool, arguments), _ = chat(Models.get(name), stream, tools=TOOLS, tool_choice="required")
            assert thoughts and not content and tool == "look", (thoughts, content, tool)
            assert json.loads(arguments) == {"city": "Rome"}, arguments


@test
def budgets_end_thoughts(_):
    for budget in (3, 9):  # inside the header, and after it
        thoughts, content, _, _ = chat(Models.get("talks"), False, thinking_budget=budget)
        assert "They greet me.".startswith(thoughts) and len(thoughts) < 14, thoughts
        assert content.endswith("Hello, you there."), content


@test
def earlier_thoughts_come_back(_):
    for name in ("reasoning_content", "reasoning", "thinking"):
        messages = [*HELLO, {"role": "assistant", "content": "", name: "hmm"}, *HELLO]
        prompt = Models.get("calls").post("/apply-template", {"messages": messages})[1]["prompt"]
        assert "hmm" in prompt, (name, prompt)


sys.exit(run_tests())
