#!/usr/bin/env python3
"""A conversation that quipu makes is one that quipu takes: loops of five turns with calls of tools and
their results, in every dialect, for the rules that chat templates have. The weights are random, so calls
are forced. Ends with "N passed, N failed"."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

from server_process import MODEL, Server, run_tests, test

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rom"]}}, "required": ["city"],
          "additionalProperties": False}
TURNS = 5
EACH = "{% for m in messages %}[{{ m.role }}{% for c in m.tool_calls or [] %} {CALL}{% endfor %}] {{ m.content }}\n{% endfor %}"
TOOLS = "{{ tools | tojson if tools else '' }}"
TEMPLATES = {
    "calls as they are <tool_call>": TOOLS + EACH.replace("{CALL}", "{{ c.function | tojson }}"),
    "ids of nine [TOOL_CALLS]": TOOLS + EACH.replace("{CALL}", (
        "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('an id has nine characters') }}"
        "{% endif %}{{ c.id }}")) + (
            "{% for m in messages if m.role == 'tool' %}{% if m.tool_call_id is not defined or "
            "m.tool_call_id | length != 9 %}{{ raise_exception('so has that of a result') }}{% endif %}{% endfor %}"),
    "one call a message": TOOLS + EACH.replace("{CALL}", (
        "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call a message') }}{% endif %}"
        "{{ c.function.name }}")),
    "no tools, and turns alternate": (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles alternate') }}{% endif %}{% endfor %}") + EACH.replace("{CALL}", "{{ raise_exception('never') }}"),
    "no tools": EACH.replace("{CALL}", "{{ raise_exception('never') }}"),
}


class Turn:
    """Calls of one answer: (id, name, arguments), and the messages with which a client goes on."""

    def __init__(self, calls, sent):
        self.calls, self.sent = calls, sent


def openai(s, history, stream):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"messages": history, "tools": tools, "tool_choice": "required", "seed": len(history)}
    if not stream:
        status, reply = s.post("/v1/chat/completions", body)
        assert status == 200, reply
        message = reply["choices"][0]["message"]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": []}
        for event in s.stream("/v1/chat/completions", body)[:-1]:
            for part in event["choices"][0]["delta"].get("tool_calls", []) if event["choices"] else []:
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"id": part["id"], "type": "function",
                                                  "function": {"name": part["function"]["name"], "arguments": ""}})
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"].get("arguments", "")
    calls = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]]
    results = [{"role": "tool", "tool_call_id": c[0], "content": "sunny"} for c in calls]
    return Turn(calls, [message, *results])


def anthropic(s, history, stream):
    body = {"messages": history, "max_tokens": 300, "tools": [{"name": "weather", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "temperature": 1}
    if stream:
        blocks = {}
        for event in s.stream("/v1/messages", body):
            if event["type"] == "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "text_of_input": ""}
            elif event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
                blocks[event["index"]]["text_of_input"] += event["delta"]["partial_json"]
        content = [{"type": "tool_use", "id": b["id"], "name": b["name"], "input": json.loads(b["text_of_input"])}
                   for b in blocks.values() if b["type"] == "tool_use"]
    else:
        status, reply = s.post("/v1/messages", body)
        assert status == 200, reply
        content = reply["content"]
    calls = [(b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": c[0], "content": "sunny"} for c in calls]
    return Turn(calls, [{"role": "assistant", "content": content}, {"role": "user", "content": results}])


def ollama(s, history, stream):
    # Ollama's API forces no calls: the client brings those of another server, without ids.
    call = {"function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    body = {"messages": history, "stream": stream, "options": {"num_predict": 3},
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]}
    status, reply = s.post("/api/chat", body)
    assert status == 200, reply
    calls = [("", "weather", {"city": "Ulm"})] * 2
    return Turn(calls, [{"role": "assistant", "content": "", "tool_calls": [call, call]},
                        {"role": "tool", "tool_name": "weather", "content": "sunny"},
                        {"role": "tool", "tool_name": "weather", "content": "wet"}])


def responses(s, history, stream):
    body = {"input": history, "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
            "tool_choice": "required", "temperature": 1}
    if stream:
        output = s.stream("/v1/responses", body)[-1]["response"]["output"]
    else:
        status, reply = s.post("/v1/responses", body)
        assert status == 200, reply
        output = reply["output"]
    calls = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in output if i["type"] == "function_call"]
    return Turn(calls, [*output, *({"type": "function_call_output", "call_id": c[0], "output": "sunny"} for c in calls)])


@test
def every_dialect_goes_on_with_every_template(_):
    for name, source in TEMPLATES.items():
        with tempfile.TemporaryDirectory() as top:
            model = Path(top) / "model"
            shutil.copytree(MODEL.parent / "llama-text", model)
            config = json.loads((model / "tokenizer_config.json").read_text())
            config["chat_template"] = "{# " + name + " #}" + source
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            with Server("-c", "4096", model=model) as s:
                for ask in (openai, anthropic, ollama, responses):
                    for stream in (False, True):
                        history = [{"role": "user", "content": "hi"}]
                        for _turn in range(TURNS):
                            turn = ask(s, history, stream)
                            assert turn.calls, (name, ask.__name__, stream)
                            assert all(c[1] == "weather" and c[2]["city"] in ("Ulm", "Rom") for c in turn.calls)
                            history += turn.sent


@test
def two_calls_of_one_message_are_written_one_after_another(_):
    with tempfile.TemporaryDirectory() as top:
        model = Path(top) / "model"
        shutil.copytree(MODEL.parent / "llama-text", model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = TEMPLATES["one call a message"]
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        calls = [{"id": i, "function": {"name": i, "arguments": "{}"}} for i in "ab"]
        messages = [{"role": "assistant", "content": "x", "tool_calls": calls},
                    {"role": "tool", "tool_call_id": "b", "content": "of b"},
                    {"role": "tool", "tool_call_id": "a", "content": "of a"}]
        with Server(model=model) as s:
            text = s.post("/apply-template", {"messages": messages})[1]["prompt"]
        assert text == "[assistant a] x\n[tool] of a\n[assistant b] \n[tool] of b\n", text


@test
def items_of_one_turn_are_one_message(s):
    items = [{"role": "user", "content": "u"}, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
             {"role": "assistant", "content": "b"}, {"role": "user", "content": "v"}]
    merged = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "v"}]
    counts = [s.post("/v1/responses", {"input": i, "max_output_tokens": 1})[1]["usage"]["input_tokens"] for i in (items, merged)]
    assert counts[0] == counts[1], counts


@test
def tools_of_codex(_):
    with Server("-c", "4096") as s:  # room for a long random text in a call
        check_tools_of_codex(s)


def check_tools_of_codex(s):
    tools = [{"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
             {"type": "namespace", "name": "mcp__box", "tools": [{"type": "function", "name": "open", "parameters": SCHEMA}]},
             {"type": "web_search"}]
    for name, kind in (("apply_patch", "custom_tool_call"), ("mcp__box__open", "function_call")):
        body = {"input": "x", "tools": tools, "tool_choice": {"type": "function", "name": name}, "temperature": 1, "seed": 1}
        status, head, reply = s.request("POST", "/v1/responses", body)
        assert status == 200 and "web_search" in head.getheader("Warning"), reply
        call = next(i for i in reply["output"] if i["type"] != "message")
        assert call["type"] == kind, call
        if kind == "custom_tool_call":
            assert isinstance(call["input"], str) and "arguments" not in call, call
        else:
            assert call["namespace"] == "mcp__box" and call["name"] == "open", call
        history = [{"role": "user", "content": "x"}, call, {"type": kind + "_output", "call_id": call["call_id"], "output": "ok"}]
        assert s.post("/v1/responses", {**body, "input": history})[0] == 200
        done = [e for e in s.stream("/v1/responses", body) if e["type"].endswith("done") and "name" in e]
        assert done and done[0]["type"].startswith("response.custom" if kind[0] == "c" else "response.function"), done
    status, reply = s.post("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                                            "tools": [{"type": "web_search_20250305", "name": "web_search"}]})
    assert status == 400 and "web_search_20250305" in reply["error"]["message"], reply


sys.exit(run_tests())
