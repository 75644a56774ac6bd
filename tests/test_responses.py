#!/usr/bin/env python3
"""/v1/responses with state: what goes on from an earlier response has its conversation, responses can be looked up and deleted
by the key that made them, and memory is bounded. Ends with "N passed, N failed"."""
import sys
import tempfile

from scripted_model import scripted_model
from server_process import Server, run_tests, test

TEMPLATE = ("{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %}:{{ m.reasoning_content }}{% endif %}] {{ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
            "{{ tools | tojson if tools else '' }}{% if add_generation_prompt %}{% if messages[-1].role == 'tool' %}<|told|>"
            "{% elif tools %}<|calls|>{% else %}<|says|>{% endif %}{% endif %}{# </think> #}")
SCRIPTS = {"says": "<think>\nLet me see.\n</think>\n\nIt is so.", "told": "Then it rains there.",
           "calls": '<tool_call>\n{"name": "look", "arguments": {"city": "Ulm"}}\n</tool_call>'}
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


def ask(s, stream=False, **body):
    body = {"temperature": 0, **body}
    if stream:
        return s.stream("/v1/responses", body)[-1]["response"]
    status, reply = s.post("/v1/responses", body)
    assert status == 200, reply
    return reply


def whole(history, response, more):
    return [*history, *response["output"], *more]


def user(text):
    return {"role": "user", "content": text}


def check_going_on(s):
    """A conversation by ids has as many tokens as the same one that is sent whole."""
    for stream in (False, True):
        for include in ([], ["reasoning.encrypted_content"]):
            first = ask(s, stream, input="hello", instructions="Be brief.", metadata={"a": "b"}, include=include)
            assert first["store"] is True and first["metadata"] == {"a": "b"} and first["previous_response_id"] is None, first
            assert [i["type"] for i in first["output"]] == ["reasoning", "message"], first
            if include:  # as clients that keep nothing else of thoughts
                del first["output"][0]["content"]
            by_id = ask(s, stream, input="and then", previous_response_id=first["id"])
            sent = ask(s, stream, input=whole([user("hello")], first, [user("and then")]), store=False)
            assert by_id["usage"]["input_tokens"] == sent["usage"]["input_tokens"], (by_id["usage"], sent["usage"])
            assert by_id["previous_response_id"] == first["id"] and sent["store"] is False
            third = ask(s, stream, input="more", previous_response_id=by_id["id"])
            assert third["usage"]["input_tokens"] > by_id["usage"]["input_tokens"] + by_id["usage"]["output_tokens"] / 2
    called = ask(s, input="weather", tools=TOOLS)
    call = called["output"][0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    told = ask(s, input=[result], tools=TOOLS, previous_response_id=called["id"])
    assert told["output"][0]["content"][0]["text"] == "Then it rains there.", told


@test
def conversations_go_on(_):
    with tempfile.TemporaryDirectory() as top:
        path = scripted_model(f"{top}/m", TEMPLATE, SCRIPTS, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
        with Server("-c", "2048", model=path) as s:
            check_going_on(s)


@test
def responses_are_looked_up_and_deleted(s):
    made = ask(s, input="hello", max_output_tokens=3)
    status, found = s.get(f"/v1/responses/{made['id']}")
    assert status == 200 and found == made, (made, found)
    status, items = s.get(f"/v1/responses/{made['id']}/input_items")
    assert items["data"] == [{"type": "message", "role": "user", "content": "hello"}], items
    counted = s.post("/v1/responses/input_tokens", {"input": "hello"})[1]
    assert counted == {"input_tokens": made["usage"]["input_tokens"], "object": "response.input_tokens"}, counted
    status, _, gone = s.request("DELETE", f"/v1/responses/{made['id']}")
    assert status == 200 and gone["deleted"] is True, gone
    assert s.get(f"/v1/responses/{made['id']}")[0] == 404
    assert s.request("DELETE", f"/v1/responses/{made['id']}")[0] == 404
    status, reply = s.post("/v1/responses", {"input": "x", "previous_response_id": made["id"]})
    assert status == 400 and reply["error"]["code"] == "previous_response_not_found", reply
    unkept = ask(s, input="hello", max_output_tokens=3, store=False)
    assert s.get(f"/v1/responses/{unkept['id']}")[0] == 404


@test
def keys_have_their_own(_):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write("a\nb\n")
        file.flush()
        with Server("--api-key-file", file.name, "--shared-cache") as s:
            def as_key(key):
                return {"Authorization": f"Bearer {key}"}
            made = s.post("/v1/responses", {"input": "x", "max_output_tokens": 2}, **as_key("a"))[1]
            assert s.get(f"/v1/responses/{made['id']}", **as_key("a"))[0] == 200
            assert s.get(f"/v1/responses/{made['id']}", **as_key("b"))[0] == 404
            assert s.request("DELETE", f"/v1/responses/{made['id']}", headers=as_key("b"))[0] == 404


@test
def memory_is_bounded(_):
    with Server("--store-size", "8000") as s:
        made = [ask(s, input="x" * 300, max_output_tokens=1)["id"] for _ in range(12)]
        kept = [i for i in made if s.get(f"/v1/responses/{i}")[0] == 200]
        assert 1 < len(kept) < 12 and kept == made[-len(kept):], (kept, made)
    with Server("--store-size", "0") as s:
        reply = ask(s, input="x", max_output_tokens=1)
        assert reply["store"] is False and s.get(f"/v1/responses/{reply['id']}")[0] == 404


sys.exit(run_tests())
