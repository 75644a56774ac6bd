#!/usr/bin/env python3
"""A conversation that quipu makes is one that quipu takes: loops of five turns with calls of tools and
their results, in every dialect, for the rules that chat templates have. The weights are random, so calls
are forced, and what they say depends on the processor: every request has room for the longest answer that
its form allows (16 calls, up to 21 tokens of white space at each of eight places), or tries seeds until an
answer ended. Ends with "N passed, N failed"."""
import json
import shutil
import sys
import tempfile
from pathlib import Path

from server_process import MODEL, Server, run_tests, test

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rom"]}}, "required": ["city"],
          "additionalProperties": False}
TURNS = 5
ROOM = ("-c", "16384")  # five turns of 16 calls, each with up to 250 tokens when it is written and 110 when it is read
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
    body = {"messages": history, "max_tokens": 400, "tools": [{"name": "weather", "input_schema": SCHEMA}],
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
            "tool_choice": "required", "temperature": 1, "seed": len(history)}
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
            with Server(*ROOM, model=model) as s:
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
    with Server("-c", "4096") as s:
        check_tools_of_codex(s)


def answered(s, path, body):
    """(body, head, reply) with the first seed whose answer ends: a random text in a call may take any number of tokens."""
    for seed in range(1, 60):
        body = {**body, "seed": seed, "max_output_tokens": 800}
        status, head, reply = s.request("POST", path, body)
        assert status == 200, reply
        if reply["status"] == "completed":
            return body, head, reply
    raise AssertionError(("no answer ended", reply))


def check_tools_of_codex(s):
    tools = [{"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
             {"type": "namespace", "name": "mcp__box", "tools": [{"type": "function", "name": "open", "parameters": SCHEMA}]},
             {"type": "web_search"}]
    for name, kind in (("apply_patch", "custom_tool_call"), ("mcp__box__open", "function_call")):
        body = {"input": "x", "tools": tools, "tool_choice": {"type": "function", "name": name}, "temperature": 1}
        body, head, reply = answered(s, "/v1/responses", body)
        assert "web_search" in head.getheader("Warning"), reply
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


# ---- Requests as agents send them: the fields and types of items that Codex and Claude Code have, with other values ----

def codex_request(items, **more):
    shell = {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"},
                                              "timeout_ms": {"type": "number"}}, "required": ["command"], "additionalProperties": False}
    tools = [{"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": shell},
             {"type": "function", "name": "update_plan", "description": "d", "strict": False,
              "parameters": {"type": "object", "properties": {"plan": {"type": "array", "items": {"type": "object", "properties": {
                  "step": {"type": "string"}, "status": {"type": "string"}}, "required": ["step", "status"], "additionalProperties": False}}},
                  "required": ["plan"], "additionalProperties": False}},
             {"type": "custom", "name": "apply_patch", "description": "d",
              "format": {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"}},
             {"type": "namespace", "name": "mcp__files__", "description": "d",
              "tools": [{"type": "function", "name": "read", "description": "d", "strict": False, "parameters": SCHEMA}]},
             {"type": "local_shell"}, {"type": "web_search", "external_web_access": False},
             {"type": "image_generation", "output_format": "png"}]
    return {"model": "gpt-5-codex", "instructions": "You are an agent.", "input": items, "tools": tools, "tool_choice": "auto",
            "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199f5c4-3c1a-7f30-9d0e-6a1b2c3d4e5f",
            "text": {"verbosity": "low"}, "service_tier": "auto", "client_metadata": {"turn": "1"}, "max_output_tokens": 8, **more}


def codex_items():
    said = lambda kind, text: [{"type": kind, "text": text}]
    turn = {"internal_chat_message_metadata_passthrough": {"turn_id": "t1"}}
    call = {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"}
    return [{"type": "message", "role": "developer", "content": said("input_text", "Be brief.")},
            {"type": "message", "role": "user", "content": said("input_text", "<environment_context>x</environment_context>"), **turn},
            {"type": "message", "role": "user", "content": said("input_text", "List the files.")},
            {"type": "reasoning", "id": "rs_1", "summary": said("summary_text", "I look."), "content": said("reasoning_text", "I list."),
             "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": said("output_text", "I look."), "phase": "commentary", "id": "msg_1"},
            call, {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.c\\n","metadata":{"exit_code":0}}'},
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": said("input_text", "Done")},
            {"type": "function_call", "name": "read", "namespace": "mcp__files__", "arguments": "{}", "call_id": "call_3"},
            {"type": "function_call_output", "call_id": "call_3", "output": said("input_text", "text of a file")},
            {"type": "local_shell_call", "call_id": "call_4", "status": "completed",
             "action": {"type": "exec", "command": ["pwd"], "timeout_ms": 1000, "working_directory": "/", "env": None, "user": None}},
            {"type": "local_shell_call_output", "call_id": "call_4", "output": "/"},
            {"type": "agent_message", "author": "reviewer", "recipient": "main", "content": said("input_text", "Looks right.")},
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
            {"type": "message", "role": "assistant", "content": said("output_text", "Done."), "phase": "final_answer"},
            {"type": "message", "role": "user", "content": said("input_text", "And now?")}]


@test
def requests_of_codex(_):
    with Server("-c", "8192") as s:
        headers = {"originator": "codex_cli_rs", "session_id": "0199f5c4", "User-Agent": "codex_cli_rs/0.60 (Debian 12; x86_64) xterm",
                   "Accept": "text/event-stream", "version": "0.60.0"}
        status, head, text = s.request("POST", "/v1/responses", codex_request(codex_items()), headers)
        assert status == 200 and "web_search" in head.getheader("Warning"), text
        events = [json.loads(line[6:]) for line in text.decode().split("\n") if line.startswith("data: {")]
        kinds = [e["type"] for e in events]
        assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
        usage = events[-1]["response"]["usage"]
        assert {"input_tokens", "output_tokens", "total_tokens"} <= set(usage) and "cached_tokens" in usage["input_tokens_details"], usage
        items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert items and all("type" in i for i in items), items
        schema = {"type": "json_schema", "strict": True, "name": "codex_output_schema",
                  "schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}}
        body = codex_request(codex_items(), stream=False, tools=[], text={"verbosity": "high", "format": schema}, max_output_tokens=128)
        reply = s.post("/v1/responses", body)[1]
        assert set(json.loads(reply["output"][-1]["content"][0]["text"])) == {"ok"}, reply
        shown = [i for i in codex_items() if i["type"] != "web_search_call"]
        counts = [s.post("/v1/responses/input_tokens", {"input": i})[1]["input_tokens"] for i in (codex_items(), shown)]
        assert counts[0] == counts[1], counts
        for kind, more in (("compaction", {"encrypted_content": "x"}), ("tool_search_output", {"status": "completed", "tools": []})):
            status, reply = s.post("/v1/responses", codex_request([*codex_items(), {"type": kind, **more}]))
            assert status == 400 and kind in reply["error"]["message"], reply


def claude_code_request(**more):
    kept = {"cache_control": {"type": "ephemeral"}}
    tools = [{"name": name, "description": "d", "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
              "properties": {"command": {"type": "string", "description": "d"}, "timeout": {"type": "number"}}, "required": ["command"],
              "additionalProperties": False}} for name in ("Bash", "mcp__files__read")]
    tools[-1].update(kept)
    return {"model": "claude-sonnet-4-5", "max_tokens": 8, "stream": True, "temperature": 1, "tools": tools,
            "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1"}, {"type": "text", "text": "You are an agent.", **kept}],
            "metadata": {"user_id": "user_1_account__session_2"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "List."}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "I list.", "signature": "c2ln"},
                                                  {"type": "text", "text": "I look."},
                                                  {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                                                  {"type": "tool_use", "id": "toolu_2", "name": "mcp__files__read", "input": {"command": "a"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.c", "is_error": False},
                                             {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
                                              "content": [{"type": "text", "text": "none"}], **kept}]}], **more}


@test
def requests_of_claude_code(_):
    with Server("-c", "8192") as s:
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
                   "anthropic-dangerous-direct-browser-access": "true", "x-app": "cli", "User-Agent": "claude-cli/2.1 (external, cli)",
                   "x-stainless-lang": "js", "x-stainless-retry-count": "0", "Authorization": "Bearer none"}
        status, head, text = s.request("POST", "/v1/messages?beta=true", claude_code_request(), headers)
        assert status == 200 and head.getheader("request-id"), text
        events = [json.loads(line[6:]) for line in text.decode().split("\n") if line.startswith("data: {")]
        kinds = [e["type"] for e in events if e["type"] != "ping"]
        assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
        assert {"input_tokens", "cache_read_input_tokens"} <= set(events[0]["message"]["usage"]), events[0]
        count = {k: v for k, v in claude_code_request().items() if k in ("model", "messages", "tools", "system", "thinking")}
        n = s.request("POST", "/v1/messages/count_tokens?beta=true", count, headers)[2]["input_tokens"]
        usage = s.request("POST", "/v1/messages", claude_code_request(stream=False), headers)[2]["usage"]
        assert n == usage["input_tokens"] + usage["cache_read_input_tokens"], (n, usage)
        title = {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string", "maxLength": 5}},
                                                    "required": ["title"], "additionalProperties": False}}
        body = claude_code_request(stream=False, tools=[], thinking={"type": "disabled"}, output_config={"format": title}, max_tokens=200)
        reply = s.request("POST", "/v1/messages?beta=true", body, headers)[2]
        assert set(json.loads(reply["content"][0]["text"])) == {"title"}, reply
        old = claude_code_request(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048, temperature=None, stream=False,
                                  stop_sequences=["e"], output_config=None)
        assert s.request("POST", "/v1/messages?beta=true", old, headers)[0] == 200


sys.exit(run_tests())
