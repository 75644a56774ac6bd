#!/usr/bin/env python3
"""Answers of quipu serve that are bound to forms: all fields that ask for one, calls of tools in the
forms of three families, mistakes. The models' weights are random, so only the form makes their texts
what they are. Ends with "N passed, N failed"."""
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from server_process import HELLO, MODEL, Server, refusal

TESTS = []
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 1, "maximum": 130},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
             "type": "object", "properties": {"city": {"$ref": "#/$defs/c"}, "days": {"type": "integer", "maximum": 9, "minimum": 1}},
             "required": ["city", "days"], "additionalProperties": False, "$defs": {"c": {"enum": ["Ulm", "Rom"]}}}}},
         {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}]
SEED = 11  # the same on every run: the same texts


def test(function):
    TESTS.append(function)
    return function


def check_person(text):
    person = json.loads(text)
    assert list(person) == ["name", "age", "tags"] and len(person["name"]) <= 12, person
    assert 1 <= person["age"] <= 130 and set(person["tags"]) <= {"a", "b"} and len(person["tags"]) <= 3, person


def chat(s, **fields):
    status, reply = s.post("/v1/chat/completions", {"messages": HELLO, "seed": SEED, **fields})
    assert status == 200, reply
    return reply["choices"]


@test
def schemas_of_openai(s):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    for choice in chat(s, response_format=wanted, n=8, temperature=1.5):
        assert choice["finish_reason"] == "stop", choice
        check_person(choice["message"]["content"])
    events = s.stream("/v1/chat/completions", {"messages": HELLO, "response_format": wanted, "temperature": 1})
    check_person("".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"]))
    check_person(s.post("/v1/completions", {"prompt": "x", "response_format": wanted, "max_tokens": 400})[1]["choices"][0]["text"])
    reply = s.post("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}})[1]
    check_person(reply["output"][0]["content"][0]["text"])


@test
def regular_expressions(s):
    pattern = r'(\d{2,4}-[a-f"\\\\]{3}|"\n?)+\u00e9?'
    for field in ({"guided_regex": pattern}, {"regex": "^" + pattern + "$"}, {"structured_outputs": {"regex": pattern}}):
        for choice in chat(s, **field, n=4, temperature=2, max_tokens=300, frequency_penalty=2):
            cut = choice["finish_reason"] == "length"
            assert cut or re.fullmatch(pattern, choice["message"]["content"]), choice
    body = {"input": "x", "guided_regex": "(yes|no)!", "temperature": 1}
    assert s.post("/v1/responses", body)[1]["output"][0]["content"][0]["text"] in ("yes!", "no!")
    for path, ask, read in (("/completion", {"prompt": "x"}, lambda r: r["content"]),
                            ("/api/generate", {"prompt": "x", "stream": False, "options": {"guided_regex": "(yes|no)!"}}, lambda r: r["response"]),
                            ("/v1/messages", {"messages": HELLO, "max_tokens": 9}, lambda r: r["content"][0]["text"])):
        more = {} if "options" in ask else {"guided_regex": "(yes|no)!"}
        assert read(s.post(path, {**ask, **more})[1]) in ("yes!", "no!"), path


@test
def answers_that_are_cut(s):
    (choice,) = chat(s, response_format={"type": "json_object"}, max_tokens=3, temperature=1)
    assert choice["finish_reason"] in ("length", "stop") and choice["message"]["content"].startswith("{"), choice


@test
def forms_of_other_servers(s):
    check_person(s.post("/api/chat", {"messages": HELLO, "format": SCHEMA, "stream": False})[1]["message"]["content"])
    text = s.post("/api/generate", {"prompt": "x", "format": "json", "stream": False, "options": {"num_predict": 2}})[1]["response"]
    assert text.startswith("{"), text
    check_person(s.post("/completion", {"prompt": "x", "json_schema": SCHEMA})[1]["content"])
    text = s.post("/completion", {"prompt": "x", "grammar": 'root ::= [a-c]{5} "!"', "temperature": 1})[1]["content"]
    assert len(text) == 6 and text[5] == "!" and set(text[:5]) <= set("abc"), text
    for fields in ({"guided_choice": ["yes", 'q"\\\n\u00e9']}, {"structured_outputs": {"choice": ["yes", 'q"\\\n\u00e9']}}):
        assert {c["message"]["content"] for c in chat(s, n=8, temperature=2, **fields)} <= {"yes", 'q"\\\n\u00e9'}
    for fields in ({"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}}):
        check_person(chat(s, **fields)[0]["message"]["content"])
    assert chat(s, guided_grammar='root ::= "x"')[0]["message"]["content"] == "x"


def check_calls(s, parallel):
    """Calls are forced in every API; `parallel`: the family may have several."""
    choices = chat(s, tools=TOOLS, tool_choice="required", n=6, temperature=1.2)
    whole = [choice for choice in choices if choice["finish_reason"] != "length"]  # others fill the context
    assert whole, choices
    for choice in whole:
        assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"], choice
        calls = choice["message"]["tool_calls"]
        assert parallel or len(calls) == 1
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "weather":
                assert arguments["city"] in ("Ulm", "Rom") and 1 <= arguments["days"] <= 9, arguments
            else:
                assert call["function"]["name"] == "stop", call
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in chat(s, tools=TOOLS, tool_choice=named, n=4, temperature=1.2):
        assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["weather"], choice
    for choice in chat(s, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=4, temperature=1.2):
        assert len(choice["message"]["tool_calls"]) == 1, choice


@test
def calls_of_tools_are_forced(s):
    check_calls(s, False)
    tools = [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        status, reply = s.post("/v1/messages", {"messages": HELLO, "max_tokens": 200, "tools": tools, "tool_choice": choice})
        assert status == 200 and reply["stop_reason"] == "tool_use", reply
        assert reply["content"][-1]["input"]["city"] in ("Ulm", "Rom"), reply
    flat = [{"type": "function", **TOOLS[0]["function"]}]
    reply = s.post("/v1/responses", {"input": "x", "tools": flat, "tool_choice": {"type": "function", "name": "weather"}})[1]
    assert reply["output"][0]["type"] == "function_call", reply
    assert reply["tool_choice"] == {"type": "function", "name": "weather"} and not reply["parallel_tool_calls"], reply
    # A form of the request's own leaves no room for calls.
    (choice,) = chat(s, tools=TOOLS, response_format={"type": "json_schema", "json_schema": {"schema": {"const": 5}}})
    assert choice["message"]["content"] == "5" and not choice["message"].get("tool_calls"), choice


@test
def calls_in_the_forms_of_families(_):
    for marks, parallel in (("<tool_call>", True), ("[TOOL_CALLS]", True), ("[TOOL_CALLS][ARGS]", True)):
        with tempfile.TemporaryDirectory() as top:
            model = Path(top) / "model"
            shutil.copytree(MODEL.parent / "llama-text", model)
            config = json.loads((model / "tokenizer_config.json").read_text())
            config["chat_template"] = "{{ messages[0].content }}{# " + marks + " #}"
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            with Server(model=model) as s:
                check_calls(s, parallel)


@test
def mistakes_are_named(s):
    path = "/v1/chat/completions"

    def wrong(param, *words, **fields):
        error = refusal(s, path, {"messages": HELLO, **fields}, param)
        assert all(word in error["message"] for word in words), error

    def schema(value):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}

    wrong("response_format", "contains", "#/properties/a", response_format=schema({"properties": {"a": {"contains": {}}}}))
    wrong("response_format", "schema", response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    wrong("response_format", "grammar", response_format={"type": "grammar"})
    wrong("response_format", response_format=schema({"$ref": "#"}))
    wrong("grammar", "line 1", grammar="root ::= (")
    wrong("json_schema", "JSON", json_schema="{")
    wrong("json_schema", "exclude", grammar='root ::= "a"', json_schema={})
    wrong("guided_choice", "texts", guided_choice=[1])
    wrong("structured_outputs", "structural_tag", structured_outputs={"structural_tag": {}})
    wrong("structured_outputs", "group", structured_outputs={"regex": "a(b"})
    wrong("guided_regex", "escape", guided_regex="\\bx")
    wrong("structured_outputs", '"json" and "regex"', structured_outputs={"json": SCHEMA, "regex": "a*"})
    wrong("grammar", "ignore_eos", grammar='root ::= "a"', ignore_eos=True)
    wrong("grammar", "min_tokens", grammar='root ::= "a"', min_tokens=2)
    wrong("tool_choice", "tools", tool_choice="required")
    wrong("tool_choice", "none", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "none"}})
    wrong("tool_choice", "required", tools=TOOLS, tool_choice="must")
    bad = [{"type": "function", "function": {"name": "f", "parameters": {"type": "array", "contains": {}}}}]
    wrong("tool_choice", "contains", "f", tools=bad, tool_choice="required")
    assert s.post("/api/chat", {"messages": HELLO, "format": "xml"})[0] == 400
    # A form that becomes too ambiguous ends its own answer alone.
    hostile = 'root ::= (("a"{1,3000} "b"?){1,3000} "c"?){1,3000}'
    status, reply = s.post("/completion", {"prompt": "x", "grammar": hostile, "n_predict": 400, "logit_bias": [["a", 100]]})
    assert status in (200, 400), reply
    wide = {"properties": {f"p{i}": True for i in range(1900)}}
    status, reply = s.post("/completion", {"prompt": "x", "json_schema": wide, "n_predict": 4})
    assert status == 400 and "the form is too ambiguous" in reply["error"]["message"], reply
    check_person(s.post("/completion", {"prompt": "x", "json_schema": SCHEMA})[1]["content"])


def main():
    failed = 0
    with Server("--parallel", "8", "-c", "512") as shared:
        for one in TESTS:
            try:
                one(shared)
            except Exception as error:  # noqa: BLE001: each test is judged alone
                failed += 1
                print(f"FAILED {one.__name__}: {type(error).__name__}: {error}")
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
