#!/usr/bin/env python3
"""Thoughts and calls of tools in every dialect, streamed and not, from models that write given texts: thoughts are apart,
counted and bound by budgets, and arguments come as they are made. Ends with "N passed, N failed"."""
import json
import sys
import tempfile

from scripted_model import scripted_model
from server_process import Server, run_tests, test

ARGUMENTS = '{"path": "notes.txt", "content": "Line one\\nand \\"quoted\\" words, of which there are many more than fit a piece"}'
SCRIPTS = {
    "thinks": "<think>\nFirst I ponder over this.\n\nSo be it.\n</think>\n\nHello, I am done.",
    "opened": "It was open already, hmm.\n</think>\n\nNow I answer: \u4f60\u597d.",
    "calls": "Let me write that.\n<tool_call>\n{\"name\": \"write\", \"arguments\": " + ARGUMENTS + "}\n</tool_call>",
    "both": "<think>\nA tool would help me.\n</think>\n\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>",
    "raw": "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"content\": \"tab\there,\nnew line\"}}\n</tool_call>",
    "cut": "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"city\": \"Rome or Par",
}
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}{{ tools | tojson if tools else '' }}"
    "{% if add_generation_prompt %}"
    + "".join(f"{{% if messages[-1].content == '{n}' %}}<|{n}|>{{% endif %}}" for n in SCRIPTS)
    + "{% endif %}{# the model writes <think>...</think> and <tool_call> #}")
TOOLS = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("write", "look")]
THOUGHT, ANSWER = "First I ponder over this.\n\nSo be it.", "Hello, I am done."


class Models:
    """The servers of this suite, begun once."""

    folder = tempfile.TemporaryDirectory()
    servers = {}

    @classmethod
    def get(cls, name="plain", template=TEMPLATE):
        if name not in cls.servers:
            path = scripted_model(f"{cls.folder.name}/{name}", template, SCRIPTS, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
            cls.servers[name] = Server("-c", "2048", "--parallel", "2", model=path)
        return cls.servers[name]


def user(text):
    return [{"role": "user", "content": text}]


def chat(s, stream, **body):
    """The message of an answer, its finish reason, how many pieces it came in, and its usage."""
    body = {"temperature": 0, **body}
    if not stream:
        status, reply = s.post("/v1/chat/completions", body)
        assert status == 200, reply
        choice = reply["choices"][0]
        return choice["message"], choice["finish_reason"], 1, reply["usage"]
    events = s.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})[:-1]
    message, reason, most = {"content": "", "reasoning_content": "", "reasoning": "", "tool_calls": []}, None, 0
    for choice in (e["choices"][0] for e in events if e["choices"]):
        delta = choice["delta"]
        for name in ("content", "reasoning_content", "reasoning"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"]), events
                message["tool_calls"].append({"id": call["id"], "function": {"name": call["function"]["name"], "arguments": ""}})
                most = 0
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            most += 1
        reason = reason or choice["finish_reason"]
    return message, reason, most, events[-1]["usage"]


def anthropic(s, stream, **body):
    """The blocks of an answer, why it stopped, and how many pieces the last call came in."""
    body = {"max_tokens": 500, "temperature": 0, **body}
    if not stream:
        status, reply = s.post("/v1/messages", body)
        assert status == 200, reply
        return reply["content"], reply["stop_reason"], 1
    blocks, reason, pieces, is_open = [], None, 0, None
    for e in s.stream("/v1/messages", body):
        if e["type"] == "content_block_start":
            assert is_open is None and e["index"] == len(blocks), e
            is_open, pieces = e["index"], 0
            blocks.append({**e["content_block"], "json": ""})
        elif e["type"] == "content_block_delta":
            assert is_open == e["index"]
            d, pieces = e["delta"], pieces + 1
            name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json",
                    "signature_delta": "signature"}[d["type"]]
            blocks[-1]["json" if name == "partial_json" else name] += d[name]
        elif e["type"] == "content_block_stop":
            is_open = None
        elif e["type"] == "message_delta":
            reason = e["delta"]["stop_reason"]
    assert is_open is None
    for b in blocks:
        text = b.pop("json")
        if b["type"] == "tool_use" and reason != "max_tokens":
            b["input"] = json.loads(text)
    return blocks, reason, pieces


def ollama(s, stream, path="/api/chat", **body):
    body = {"options": {"temperature": 0}, "stream": stream, **body}
    status, _, reply = s.request("POST", path, body)
    assert status == 200, reply
    lines = [json.loads(line) for line in reply.decode().splitlines()] if stream else [reply]
    messages = [line.get("message", line) for line in lines]
    whole = {"content": "".join(m.get("content", m.get("response", "")) for m in messages),
             "thinking": "".join(m.get("thinking", "") for m in messages),
             "tool_calls": [c for m in messages for c in m.get("tool_calls", [])]}
    return whole, lines[-1]


def responses(s, stream, **body):
    """The items of an answer; a stream's deltas add up to them."""
    body = {"temperature": 0, **body}
    if not stream:
        status, reply = s.post("/v1/responses", body)
        assert status == 200, reply
        return reply["output"], reply
    events = s.stream("/v1/responses", body)
    added, done, texts = {}, {}, {}
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    for e in events:
        if e["type"] == "response.output_item.added":
            added[e["output_index"]] = e["item"]["id"]
        elif e["type"] == "response.output_item.done":
            done[e["output_index"]] = e["item"]
        elif e["type"].endswith(".delta"):
            assert added[e["output_index"]] == e["item_id"], e
            texts.setdefault(e["output_index"], []).append(e["delta"])
    output = events[-1]["response"]["output"]
    assert [done[i] for i in range(len(output))] == output, (done, output)
    for i, item in enumerate(output):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(texts.get(i, [])) == text, (texts, item)
        assert item["type"] != "function_call" or len(text) < 50 or len(texts[i]) > 5, texts[i]
    return output, events[-1]["response"]


@test
def thoughts_are_apart(_):
    s = Models.get()
    for stream in (False, True):
        message, reason, _, usage = chat(s, stream, messages=user("thinks"))
        assert (message["reasoning_content"], message["content"], reason) == (THOUGHT, ANSWER, "stop"), message
        assert message["reasoning"] == THOUGHT
        counted = usage["completion_tokens_details"]["reasoning_tokens"]
        assert 10 < counted < usage["completion_tokens"] - 4, usage
        blocks, reason, _ = anthropic(s, stream, messages=user("thinks"))
        assert [(b["type"], b.get("thinking", b.get("text"))) for b in blocks] == [("thinking", THOUGHT), ("text", ANSWER)], blocks
        assert blocks[0]["signature"] and reason == "end_turn", blocks
        whole, last = ollama(s, stream, messages=user("thinks"))
        assert (whole["thinking"], whole["content"]) == (THOUGHT, ANSWER) and last["done"], whole
        assert ollama(s, stream, "/api/generate", prompt="thinks")[0]["thinking"] == THOUGHT
        output, reply = responses(s, stream, input="thinks")
        assert [i["type"] for i in output] == ["reasoning", "message"], output
        assert [i["content"][0]["text"] for i in output] == [THOUGHT, ANSWER], output
        assert reply["usage"]["output_tokens_details"]["reasoning_tokens"] == counted, reply["usage"]


@test
def arguments_come_as_they_are_made(_):
    s = Models.get()
    expected = json.loads(ARGUMENTS)
    for stream in (False, True):
        message, reason, pieces, _ = chat(s, stream, messages=user("calls"), tools=TOOLS)
        assert message["content"].strip() == "Let me write that." and reason == "tool_calls", message
        assert [json.loads(c["function"]["arguments"]) for c in message["tool_calls"]] == [expected]
        assert not stream or pieces > 10, pieces
        blocks, reason, pieces = anthropic(s, stream, messages=user("calls"),
                                           tools=[{"name": "write", "input_schema": {"type": "object"}}])
        assert [b["type"] for b in blocks] == ["text", "tool_use"] and reason == "tool_use", blocks
        assert blocks[1]["input"] == expected and (not stream or pieces > 10), (blocks, pieces)
        whole, _ = ollama(s, stream, messages=user("calls"), tools=TOOLS)
        assert [c["function"]["arguments"] for c in whole["tool_calls"]] == [expected], whole
        output, _ = responses(s, stream, input="calls", tools=[{"type": "function", "name": "write", "parameters": {}}])
        assert [i["type"] for i in output] == ["message", "function_call"] and json.loads(output[1]["arguments"]) == expected


@test
def thoughts_before_calls(_):
    s = Models.get()
    for stream in (False, True):
        message = chat(s, stream, messages=user("both"), tools=TOOLS)[0]
        assert message["reasoning_content"] == "A tool would help me." and not message["content"], message
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Ulm"}
        blocks = anthropic(s, stream, messages=user("both"), tools=[{"name": "look", "input_schema": {}}])[0]
        assert [b["type"] for b in blocks] == ["thinking", "tool_use"], blocks
        output = responses(s, stream, input="both", tools=[{"type": "function", "name": "look", "parameters": {}}])[0]
        assert [i["type"] for i in output] == ["reasoning", "function_call"], output
        whole = ollama(s, stream, messages=user("both"), tools=TOOLS)[0]
        assert whole["thinking"] == "A tool would help me." and whole["tool_calls"][0]["function"]["name"] == "look", whole


@test
def line_ends_in_texts_of_arguments(_):
    s = Models.get()
    for stream in (False, True):
        calls = chat(s, stream, messages=user("raw"), tools=TOOLS)[0]["tool_calls"]
        assert json.loads(calls[0]["function"]["arguments"]) == {"content": "tab\there,\nnew line"}, calls


@test
def a_call_that_is_cut(_):
    s = Models.get()
    for stream in (False, True):
        message, reason, _, _ = chat(s, stream, messages=user("cut"), tools=TOOLS, max_tokens=18)
        assert reason == "length", (message, reason)
        if stream:
            arguments = message["tool_calls"][0]["function"]["arguments"]
            assert '{"city": "Rome or Par'.startswith(arguments) and arguments, message
        else:
            assert "tool_calls" not in message and "look" in message["content"], message
        assert anthropic(s, stream, messages=user("cut"), tools=[{"name": "look", "input_schema": {}}], max_tokens=18)[1] == "max_tokens"
        reply = responses(s, stream, input="cut", tools=[{"type": "function", "name": "look"}], max_output_tokens=18)[1]
        assert reply["status"] == "incomplete", reply
        assert ollama(s, stream, messages=user("cut"), tools=TOOLS, options={"temperature": 0, "num_predict": 18})[1]["done_reason"] == "length"


@test
def thoughts_where_the_client_wants_them(_):
    s = Models.get()
    message = chat(s, False, messages=user("thinks"), reasoning_format="none")[0]
    assert message["content"] == SCRIPTS["thinks"] and "reasoning_content" not in message, message
    for field in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        for stream in (False, True):
            message = chat(s, stream, messages=user("thinks"), **field)[0]
            assert message["content"] == ANSWER and not message.get("reasoning_content"), message
    status, reply = s.post("/v1/completions", {"prompt": "x", "max_tokens": 3})
    assert status == 200, reply
    assert s.post("/api/show", {"model": "m"})[1]["capabilities"] == ["completion", "tools", "thinking"]
    for path, body in (("/v1/chat/completions", {"messages": user("thinks"), "reasoning_effort": "much"}),
                       ("/v1/messages", {"messages": user("thinks"), "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 1.5}}),
                       ("/v1/responses", {"input": "thinks", "reasoning": {"effort": 3}})):
        assert s.post(path, body)[0] == 400, path


@test
def budgets_end_thoughts(_):
    s = Models.get()
    for budget in (0, 1, 5):
        for stream in (False, True):
            message, _, _, usage = chat(s, stream, messages=user("thinks"), thinking_budget_tokens=budget, max_tokens=40)
            thought = message.get("reasoning_content") or ""
            assert THOUGHT.startswith(thought) and len(thought) <= 3 * budget, (budget, message)
            assert usage["completion_tokens_details"]["reasoning_tokens"] <= budget + 8, usage
    whole = chat(s, False, messages=user("thinks"), thinking_budget_tokens=500)[0]
    assert (whole["reasoning_content"], whole["content"]) == (THOUGHT, ANSWER), whole
    for path, field in (("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 4}}),
                        ("/v1/messages", {"thinking": {"type": "disabled"}})):
        blocks = anthropic(s, False, messages=user("thinks"), **field)[0]
        assert blocks[0]["type"] != "thinking" or len(blocks[0]["thinking"]) < 12, blocks
    quiet = ollama(s, False, messages=user("thinks"), think=False, options={"num_predict": 30, "temperature": 0})[0]
    assert not quiet["thinking"], quiet
    effort = responses(s, False, input="thinks", reasoning={"effort": "none"}, max_output_tokens=30)[0]
    assert all(i["type"] != "reasoning" for i in effort), effort


@test
def a_prompt_that_opens_a_thought(_):
    template = TEMPLATE.replace("<|opened|>", "<|opened|>{% if enable_thinking is not false %}<think>{% endif %}\n")
    s = Models.get("opens", template)
    for stream in (False, True):
        message = chat(s, stream, messages=user("opened"), max_tokens=8)[0]
        assert message.get("reasoning_content") is not None and not message["content"], message
        assert chat(s, stream, messages=user("opened"), think=False, max_tokens=8)[0]["content"], stream


@test
def forms_follow_thoughts(_):
    s = Models.get()
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    for stream in (False, True):
        message, reason, _, _ = chat(s, stream, messages=user("thinks"), response_format=form, max_tokens=200)
        assert message["reasoning_content"] == THOUGHT and json.loads(message["content"])["n"] in (1, 2), message
        short = chat(s, stream, messages=user("thinks"), response_format=form, thinking_budget=3, max_tokens=200)[0]
        assert len(short["reasoning_content"]) < 9 and json.loads(short["content"])["n"] in (1, 2), short
        none = chat(s, stream, messages=user("thinks"), response_format=form, think=False, max_tokens=200)[0]
        assert not none.get("reasoning_content") and json.loads(none["content"])["n"] in (1, 2), none
        forced = chat(s, stream, messages=user("thinks"), tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False,
                      max_tokens=400, temperature=1, seed=5)
        assert forced[0]["reasoning_content"] == THOUGHT and forced[0]["tool_calls"][0]["function"]["name"] == "look", forced


@test
def earlier_thoughts_come_back(_):
    s = Models.get()
    def rendered(message):
        return s.post("/apply-template", {"messages": [*user("a"), message, *user("b")]})[1]["prompt"]
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert "(hmm)yes" in rendered({"role": "assistant", "content": "yes", name: "hmm"}), name
    items = [*user("a"), {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]},
             {"role": "assistant", "content": "yes"}, *user("thinks")]
    blocks = [*user("a"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hmm", "signature": ""},
                                                            {"type": "text", "text": "yes"}]}, *user("thinks")]
    chats = [*user("a"), {"role": "assistant", "content": "yes", "reasoning_content": "hmm"}, *user("thinks")]
    counts = {s.post("/v1/responses", {"input": items, "max_output_tokens": 1})[1]["usage"]["input_tokens"],
              s.post("/v1/messages/count_tokens", {"messages": blocks})[1]["input_tokens"],
              s.post("/v1/chat/completions/input_tokens", {"messages": chats})[1]["input_tokens"]}
    assert len(counts) == 1, counts


sys.exit(run_tests())
