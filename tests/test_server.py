#!/usr/bin/env python3
"""quipu serve over its sockets: the APIs of OpenAI, Anthropic, Ollama, llama.cpp and vLLM. Ends
with "N passed, N failed"."""
import base64
import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from server_process import HELLO, MODEL, Server, events_of, refusal, run_tests, test

# ---- OpenAI ------------------------------------------------------------------------------------

@test
def chat_whole(s):
    status, reply = s.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 8,
                                                    "temperature": 0, "ignore_eos": True})
    assert status == 200, reply
    choice = reply["choices"][0]
    assert reply["object"] == "chat.completion" and choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length", choice
    assert reply["usage"]["completion_tokens"] == 8
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + 8


@test
def chat_stream_has_the_same_text(s):
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = s.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    events = s.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    usage, chunks = events[-2], events[:-2]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 12
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}, deltas[0]
    assert all("role" not in d for d in deltas[1:])
    assert "".join(d.get("content") or "" for d in deltas) == whole
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "length"
    assert all(c["usage"] is None for c in chunks)


@test
def choices_differ_and_repeat(s):
    body = {"messages": HELLO, "max_tokens": 6, "temperature": 1, "seed": 5, "n": 3,
            "ignore_eos": True}
    first, second = (s.post("/v1/chat/completions", body)[1] for _ in range(2))
    texts = [c["message"]["content"] for c in first["choices"]]
    assert len(set(texts)) > 1, texts
    assert texts == [c["message"]["content"] for c in second["choices"]]


@test
def stop_texts_are_cut(s):
    body = {"prompt": "the cat", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    text = s.post("/v1/completions", body)[1]["choices"][0]["text"]
    stop = next(c for c in text[3:] if c.isascii() and c.isalpha())
    choice = s.post("/v1/completions", {**body, "stop": [stop]})[1]["choices"][0]
    assert choice["text"] == text[:text.index(stop)] and choice["finish_reason"] == "stop", choice
    events = s.stream("/v1/completions", {**body, "stop": stop})
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == choice["text"]


@test
def prompts_in_every_form(s):
    ids = s.post("/tokenize", {"content": "the cat", "add_special": True})[1]["tokens"]
    body = {"max_tokens": 4, "temperature": 0}
    texts = [s.post("/v1/completions", {**body, "prompt": p})[1]["choices"]
             for p in ("the cat", ids, ["the cat", "a dog"], [ids, ids])]
    assert texts[0][0]["text"] == texts[1][0]["text"] == texts[2][0]["text"]
    assert [len(t) for t in texts] == [1, 1, 2, 2]
    assert [c["index"] for c in texts[2]] == [0, 1]


@test
def echo_and_logprobs(s):
    status, reply = s.post("/v1/completions", {"prompt": "the cat", "max_tokens": 0, "echo": True,
                                               "logprobs": 2})
    assert status == 200, reply
    choice = reply["choices"][0]
    notes = choice["logprobs"]
    assert choice["text"] == "the cat"
    assert notes["token_logprobs"][0] is None and all(v <= 0 for v in notes["token_logprobs"][1:])
    assert len(notes["tokens"]) == reply["usage"]["prompt_tokens"]
    reply = s.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "logprobs": True,
                                            "top_logprobs": 3, "ignore_eos": True})[1]
    content = reply["choices"][0]["logprobs"]["content"]
    assert len(content) == 3 and all(len(c["top_logprobs"]) == 3 for c in content), content
    assert all(bytes(c["bytes"]).decode("utf-8", "replace") == c["token"] for c in content)


@test
def models_and_own_endpoints(s):
    model = s.get("/v1/models")[1]["data"][0]
    assert model["id"] == "llama-text" and model["max_model_len"] == 512
    assert s.get("/v1/models/llama-text")[0] == 200 and s.get("/v1/models/other")[0] == 404
    tokens = s.post("/tokenize", {"content": "hello"})[1]["tokens"]
    assert s.post("/detokenize", {"tokens": tokens})[1]["content"].strip() == "hello"
    for wrong in ["x", 1.5, -1]:
        assert s.post("/detokenize", {"tokens": [wrong]})[0] == 400, wrong
    assert "hello" in s.post("/apply-template", {"messages": HELLO})[1]["prompt"]
    paths = s.get("/openapi.json")[1]["paths"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    messages = body["properties"]["messages"]
    assert messages["minItems"] == 1 and messages["items"]["required"] == ["role"], messages
    assert "4XX" in paths["/timeline"]["get"]["responses"]  # one that is being recorded already
    responses = paths["/v1/completions"]["post"]["responses"]
    assert {"200", "4XX", "503", "504"} == set(responses)  # 504: its timeout came before its first token
    for path, name, bad in [("/v1/embeddings", "encoding_format", "hex"), ("/v1/completions", "response_format", {"type": "x"}),
                            ("/v1/responses", "background", True),
                            ("/completion", "mirostat", 1), ("/v1/chat/completions", "tool_choice", "maybe")]:
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"][name]
        assert {"enum", "anyOf", "maxLength", "properties"} & set(schema), (path, name, schema)
        body = {"prompt": "a", "input": "a", "messages": [{"role": "user", "content": "a"}]}
        refusal(s, path, {**body, name: bad}, name)


@test
def the_engine_is_shown(s):
    s.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "ignore_eos": True})
    engine = s.get("/engine")[1]
    assert engine["pages"]["total"] > 0 and engine["totals"]["generated_tokens"] >= 3
    assert len(s.get("/slots")[1]) == 8
    values = dict(line.rsplit(" ", 1) for line in s.get("/metrics")[1].decode().splitlines()
                  if not line.startswith("#"))
    label = 'model_name="llama-text"'
    assert float(values[f"quipu:generation_tokens_total{{{label}}}"]) >= 3
    assert float(values["process_resident_memory_bytes"]) > float(values[f"quipu:heap_bytes{{{label}}}"]) >= 0
    assert 3 < float(values["process_open_fds"]) < float(values["process_max_fds"])
    assert float(values["process_cpu_seconds_total"]) > 0
    buckets = [float(v) for k, v in values.items()
               if k.startswith("quipu:time_to_first_token_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] >= 1
    status, reply, page = s.request("GET", "/")
    assert status == 200 and b"<html" in page
    assert "default-src 'none'" in reply.getheader("Content-Security-Policy")


def timeline(s, path):
    """The reply once a pass was drawn: the server waits a second for one, in which a slow machine makes none."""
    for _ in range(60):
        found = s.request("GET", path)
        if found[0] not in (429, 503):
            break
    return found


@test
def the_next_pass_is_drawn(s):
    status, _, reply = s.request("GET", "/timeline")
    assert status == 503 and "no pass" in reply["error"]["message"], reply
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps(
        {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 8}))
    answer = c.getresponse()
    status, reply, svg = timeline(s, "/timeline")
    assert status == 200 and reply.getheader("Content-Type") == "image/svg+xml", svg
    assert svg.startswith(b"<svg") and b"pass" in svg and svg.rstrip().endswith(b"</svg>")
    status, reply, page = timeline(s, "/timeline.html")
    assert status == 200 and page.startswith(b"<!DOCTYPE html>"), page
    assert "default-src 'none'" in reply.getheader("Content-Security-Policy")
    assert answer.read().rstrip().endswith(b"data: [DONE]")
    assert s.get("/engine")[0] == 200


@test
def a_model_without_vocabulary_has_ids(_):
    with Server(model="synthetic:tiny") as s:
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True, "seed": 1}
        choice = s.post("/v1/completions", body)[1]["choices"][0]
        events = s.stream("/v1/completions", body)
        streamed = [e["choices"][0]["token_ids"] for e in events[:-1]]
        assert sum(streamed, []) == choice["token_ids"] and len(choice["token_ids"]) == 5
        assert streamed[:5] == [[i] for i in choice["token_ids"]]
        refusal(s, "/v1/completions", {"prompt": "text"})
        refusal(s, "/v1/chat/completions", {"messages": HELLO})


@test
def prompts_have_progress(_):
    """With return_progress a stream begins before its first token; with verbose it has the prompt as it was read."""
    with Server("--chunk", "64") as s:
        for path, ask in (("/completion", {"prompt": [5] * 200, "n_predict": 3}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "b" * 200}], "max_tokens": 3})):
            for again in (False, True):
                events = s.stream(path, {**ask, "return_progress": True, "timings_per_token": True, "temperature": 0})
                reads = [e["prompt_progress"] for e in events if "prompt_progress" in e]
                first, total = reads[0], reads[0]["total"]
                assert first["processed"] == first["cache"] and (first["cache"] > 0) == again, reads
                assert first["time_ms"] == 0 and reads[-1]["processed"] == total > 64, reads
                assert [r["processed"] for r in reads] == sorted({r["processed"] for r in reads}), reads
                assert len(reads) == (2 if again else 2 + (total - 1) // 64), reads
                begin = events[:len(reads)]
                assert all("prompt_progress" in e and e["timings"]["predicted_n"] == 0 for e in begin), events
                plain = s.stream(path, {**ask, "temperature": 0})
                assert len(plain) == len(events) - len(reads), (plain, events)
        error = refusal(s, "/completion", {"prompt": [5] * 600}, "prompt")
        assert error["type"] == "exceed_context_size_error" and error["n_ctx"] == 512, error
        long = {"messages": [{"role": "user", "content": "b" * 2000}]}
        assert refusal(s, "/chat/completions", long, "messages")["type"] == "exceed_context_size_error"
        assert refusal(s, "/v1/chat/completions", long, "messages")["type"] == "invalid_request_error"
        body = {"messages": HELLO, "max_tokens": 2, "ignore_eos": True, "verbose": True}
        reply = s.post("/v1/chat/completions", body)[1]
        assert "hello" in reply["__verbose"]["prompt"] and reply["__verbose"]["tokens_predicted"] == 2, reply
        last = s.stream("/v1/chat/completions", body)[-2]
        assert "hello" in last["__verbose"]["prompt"] and last["choices"][0]["finish_reason"], last


@test
def completion_as_llama_cpp_has_it(s):
    body = {"prompt": "the cat", "n_predict": 12, "temperature": 0, "ignore_eos": True}
    status, reply = s.post("/completion", {**body, "return_tokens": True, "n_probs": 3, "seed": 7})
    assert status == 200 and reply["stop"] is True and reply["stop_type"] == "limit", reply
    assert len(reply["tokens"]) == reply["tokens_predicted"] == 12 == len(reply["completion_probabilities"])
    first = reply["completion_probabilities"][0]
    assert first["id"] == reply["tokens"][0] and len(first["top_logprobs"]) == 3 and first["logprob"] <= 0
    assert reply["generation_settings"]["seed"] == 7 and "the cat" in reply["prompt"]
    timings = reply["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == reply["tokens_evaluated"]
    assert abs(timings["predicted_per_second"] - 11e3 / timings["predicted_ms"]) < 1e-6
    same = s.post("/v1/completions", {"prompt": "the cat", "max_tokens": 12, "temperature": 0,
                                      "ignore_eos": True})[1]["choices"][0]["text"]
    assert reply["content"] == same
    _, _, raw = s.request("POST", "/completions", {**body, "stream": True})
    events = [json.loads(event[0][6:]) for event in events_of(raw)]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert "".join(e["content"] for e in events) == same
    assert sum((e["tokens"] for e in events), []) == reply["tokens"]
    assert events[-1]["timings"]["predicted_n"] == 12 and events[-1]["tokens"] == []


@test
def defaults_of_sampling(s):
    """The model's files have none: endpoints have the defaults of those whose they are."""
    likely = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    plain = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}

    def completion(**more):
        return s.post("/v1/completions", {"prompt": "the cat", "max_tokens": 30, "seed": 5, "ignore_eos": True,
                                          **more})[1]["choices"][0]["text"]

    params = s.get("/props")[1]["default_generation_settings"]["params"]
    assert likely.items() <= params.items(), params
    asked = {"prompt": "the cat", "n_predict": 30, "seed": 5, "ignore_eos": True}
    reply = s.post("/completion", asked)[1]
    assert likely.items() <= reply["generation_settings"].items(), reply
    assert reply["content"] == completion(**likely) != completion()
    assert completion() == completion(**plain)
    options = {"num_predict": 30, "seed": 5}
    for path, more in (("/api/generate", {"prompt": "the cat"}), ("/api/chat", {"messages": HELLO})):
        body = {**more, "stream": False}
        default, same, other = [s.post(path, {**body, "options": {**options, **o}})[1] for o in ({}, likely, plain)]
        texts = [r.get("response") or r["message"]["content"] for r in (default, same, other)]
        assert texts[0] == texts[1] != texts[2], texts
    assert s.post("/v1/responses", {"input": "hi", "max_output_tokens": 1})[1]["temperature"] == 1
    assert s.post("/completion", {**asked, "temperature": 0.5})[1]["generation_settings"]["top_k"] == 40


@test
def prompts_and_fields_as_llama_cpp_has_them(s):
    ids = s.post("/tokenize", {"content": "the cat", "add_special": True})[1]["tokens"]
    body = {"n_predict": 3, "temperature": 0}
    asked = ["the cat", ids, {"prompt_string": "the cat"}]
    texts = [s.post("/completion", {**body, "prompt": p})[1]["content"] for p in asked]
    replies = s.post("/completion", {**body, "prompt": asked})[1]
    assert [r["content"] for r in replies] == texts and len(set(texts)) == 1, replies
    mixed = s.post("/completion", {**body, "prompt": [*ids, "a dog", ids[-1]]})[1]
    assert mixed["tokens_evaluated"] > len(ids) + 1
    some = ["content", "generation_settings/n_predict", "nothing"]
    reply = s.post("/completion", {**body, "prompt": "a", "response_fields": some})[1]
    assert set(reply) == set(some[:2]) and reply["generation_settings/n_predict"] == 3, reply
    assert s.post("/completion", {"prompt": "a", "n_predict": 0})[1]["content"] == ""
    full = s.post("/completion", {"prompt": "a", "n_predict": -1, "ignore_eos": True})[1]
    assert full["truncated"] and full["stop_type"] == "limit", full["stop_type"]
    for wrong, param in (({"prompt": 3}, "prompt"), ({"prompt": [[1], 2]}, "prompt"), ({}, "prompt"),
                         ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
                         ({"prompt": "a", "n_predict": -3}, "n_predict"), ({"prompt": "a", "mirostat": 1}, "mirostat"),
                         ({"prompt": "a", "typical_p": 1.5}, "typical_p"), ({"prompt": "a", "tfs_z": 0.5}, "tfs_z"), ({"prompt": "a", "n_probs": 99}, "n_probs"),
                         ({"prompt": "a", "response_fields": [1]}, "response_fields"),
                         ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs")):
        refusal(s, "/completion", wrong, param)
    neutral = {"mirostat": 0, "typical_p": 1, "xtc_probability": 0.0, "post_sampling_probs": False}
    assert s.post("/completion", {**body, "prompt": "a", **neutral})[0] == 200


@test
def biases_of_texts(s):
    body = {"prompt": "the cat", "n_predict": 8, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    first = s.post("/completion", body)[1]["tokens"][0]
    text = s.post("/detokenize", {"tokens": [first]})[1]["content"]
    ids = s.post("/tokenize", {"content": text})[1]["tokens"]
    for biases in ([[first, False]], {str(first): -1000}, [[text, False]], {text: -1000}, [[text, -1000.0]]):
        reply = s.post("/completion", {**body, "logit_bias": biases})[1]
        banned = ids if text in json.dumps(biases, ensure_ascii=False) else [first]
        assert not set(banned) & set(reply["tokens"]), (biases, reply["tokens"])
        assert {b["token"] for b in reply["generation_settings"]["logit_bias"]} == set(banned)
    for wrong in ({"x": 1e9}, [[1]], [["x", True]], [{}], [[-1, 1]]):
        refusal(s, "/completion", {**body, "logit_bias": wrong}, "logit_bias")
    refusal(s, "/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias")


@test
def tokens_as_vllm_has_them(s):
    info = s.get("/tokenizer_info")[1]
    assert info["bos_token"] and info["model_max_length"] == 512 and "chat_template" in info, info
    plain = s.post("/tokenize", {"content": "the cat"})[1]["tokens"]
    reply = s.post("/tokenize", {"prompt": "the cat", "add_special_tokens": False})[1]
    assert reply["tokens"] == plain and reply["count"] == len(plain) and reply["max_model_len"] == 512
    begun = s.post("/tokenize", {"prompt": "the cat"})[1]["tokens"]
    assert begun == s.post("/tokenize", {"content": "the cat", "add_special": True})[1]["tokens"]
    bos = s.post("/tokenize", {"prompt": info["bos_token"], "add_special_tokens": False})[1]["tokens"]
    assert bos == [1], bos
    assert s.post("/detokenize", {"tokens": plain})[1]["prompt"].strip() == "the cat"
    props = s.get("/props")[1]
    assert props["bos_token"] == info["bos_token"] and props["model_path"].endswith(".gguf"), props
    refusal(s, "/tokenize", {}, "content")


@test
def conversations_are_counted(s):
    whole = s.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})[1]["usage"]["prompt_tokens"]
    assert s.post("/v1/chat/completions/input_tokens", {"messages": HELLO})[1] == {"input_tokens": whole}
    without = {"messages": HELLO, "add_generation_prompt": False}
    assert s.post("/chat/completions/input_tokens", without)[1]["input_tokens"] < whole
    texts = [s.post("/apply-template", b)[1]["prompt"] for b in ({"messages": HELLO}, without)]
    assert texts[0].startswith(texts[1]) and len(texts[0]) > len(texts[1])


@test
def an_answer_may_continue_the_last_message(s):
    begun = [*HELLO, {"role": "assistant", "content": " The cat "}]
    asked = {"messages": begun, "continue_final_message": True}
    text = s.post("/apply-template", asked)[1]["prompt"]
    closed = s.post("/apply-template", {"messages": begun, "add_generation_prompt": False})[1]["prompt"]
    assert text.rstrip().endswith("The cat") and closed.startswith(text) and closed != text, (text, closed)
    counts = [s.post(path, body)[1]["input_tokens"] for path, body in
              (("/chat/completions/input_tokens", asked), ("/v1/messages/count_tokens", {"messages": begun}))]
    assert counts[0] == counts[1] < s.post("/chat/completions/input_tokens", {"messages": begun})[1]["input_tokens"]
    answer = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    whole = s.post("/v1/chat/completions", {**asked, **answer})[1]["choices"][0]["message"]["content"]
    assert whole == s.post("/v1/messages", {"messages": begun, **answer})[1]["content"][0]["text"]
    for wrong in ({"messages": HELLO}, {"messages": begun, "add_generation_prompt": True},
                  {"messages": [*HELLO, {"role": "assistant", "content": ""}]}):
        refusal(s, "/v1/chat/completions", {**wrong, "continue_final_message": True}, "continue_final_message")
    blank = [*HELLO, {"role": "assistant", "content": " "}]
    assert s.post("/v1/messages", {"messages": blank, **answer})[0] == 200


@test
def chats_have_times_if_they_want_them(s):
    body = {"messages": HELLO, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "timings_per_token": True}
    assert s.post("/v1/chat/completions", body)[1]["timings"]["predicted_n"] == 4
    events = s.stream("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    events = [e for e in events if e != "[DONE]"]
    assert events[-1]["timings"]["predicted_n"] == 4 and not any("timings" in e for e in events[:-1]), events


@test
def responses(s):
    body = {"input": "hello", "instructions": "x", "max_output_tokens": 8, "temperature": 0,
            "ignore_eos": True}
    status, reply = s.post("/v1/responses", body)
    assert status == 200 and reply["object"] == "response" and reply["status"] == "incomplete"
    text = reply["output"][0]["content"][0]["text"]
    events = s.stream("/v1/responses", body)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.incomplete"
    parts = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(parts) == text == events[-1]["response"]["output"][0]["content"][0]["text"]
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    usage = [s.post("/v1/responses", {"input": i, "max_output_tokens": 1})[1]["usage"]
             for i in ("hello", items)]
    assert usage[0]["input_tokens"] == usage[1]["input_tokens"]
    refusal(s, "/v1/responses", {"input": "x", "previous_response_id": "y"}, "previous_response_id")
    refusal(s, "/v1/responses", {"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt")
    refusal(s, "/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema"}}}, "text")
    call = {"type": "function_call", "call_id": "c"}
    for item, words in (({"role": "assistant", "content": 5}, "an array of parts, found a number"),
                        ({"type": "reasoning", "content": [{"type": "x"}]}, 'of type "x"'),
                        ({**call, "arguments": "{}"}, 'must have a "name", found nothing'),
                        ({**call, "name": "f", "arguments": {"a": 1}}, '"arguments" of a call of a tool'),
                        ({"type": "custom_tool_call", "name": "f", "input": 1}, '"input" of a call of a tool')):
        status, reply = s.post("/v1/responses", {"input": [item]})
        assert status == 400 and words in reply["error"]["message"], reply


@test
def embeddings(s):
    def ask(given, **more):
        status, reply = s.post("/v1/embeddings", {"input": given, **more})
        assert status == 200 and reply["object"] == "list", reply
        assert [d["index"] for d in reply["data"]] == list(range(len(reply["data"])))
        return reply["data"], reply["usage"]
    (one,), usage = ask("the cat sat on a mat")
    size = len(one["embedding"])
    assert abs(sum(v * v for v in one["embedding"]) - 1) < 1e-5 and usage["prompt_tokens"] > 2
    several, sums = ask(["a dog", "the cat sat on a mat", "x " * 100])
    assert several[1]["embedding"] == one["embedding"] != several[0]["embedding"]
    assert sums["prompt_tokens"] == sums["total_tokens"] > usage["prompt_tokens"]
    (encoded,), _ = ask("the cat sat on a mat", encoding_format="base64", dimensions=size)
    values = struct.unpack(f"<{size}f", base64.b64decode(encoded["embedding"], validate=True))
    near = [struct.unpack("f", struct.pack("f", v))[0] for v in one["embedding"]]
    assert list(values) == near
    ids = s.post("/tokenize", {"content": "the cat sat on a mat", "add_special": True})[1]["tokens"]
    assert ask(ids)[0] == [one] and ask([ids, ids])[0][1]["embedding"] == one["embedding"]
    reply = s.post("/api/embed", {"model": "m", "input": ["the cat sat on a mat", "a dog"]})[1]
    assert reply["embeddings"] == [one["embedding"], several[0]["embedding"]]
    assert reply["prompt_eval_count"] > usage["prompt_tokens"]
    mean = s.post("/api/embeddings", {"prompt": "the cat sat on a mat"})[1]["embedding"]
    length = sum(v * v for v in mean) ** 0.5
    assert all(abs(v / length - w) < 1e-6 for v, w in zip(mean, one["embedding"]))
    mixed = [*s.post("/tokenize", {"content": "the cat", "add_special": True})[1]["tokens"], " sat on a mat"]
    same, _ = ask([mixed, {"prompt_string": "the cat sat on a mat"}])
    assert same[1]["embedding"] == one["embedding"] and len(same[0]["embedding"]) == size
    for path, name in (("/embedding", "content"), ("/embeddings", "input")):
        reply = s.post(path, {name: ["the cat sat on a mat", "a dog"]})[1]
        assert [r["embedding"] for r in reply] == [[one["embedding"]], [several[0]["embedding"]]], reply
    reply = s.post("/embedding", {"content": "the cat sat on a mat", "embd_normalize": -1})[1]
    assert reply == [{"index": 0, "embedding": [mean]}], reply
    refusal(s, "/embedding", {"content": "a", "embd_normalize": 1}, "embd_normalize")
    refusal(s, "/embedding", {}, "input")
    for body, param in (({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"),
                        ({"input": [1, 99999]}, "input"), ({"input": "x", "dimensions": 8}, "dimensions"),
                        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
                        ({"input": [[1], "x", 3]}, "input"), ({"input": [5] * 600}, "input")):
        if body.get("input") != "":  # BOS alone is a text
            refusal(s, "/v1/embeddings", body, param)


@test
def texts_are_ranked_by_their_vectors(s):
    texts = ["a cat sat", "on a mat", "the sea is salty", "on a mat"]
    vectors = [d["embedding"] for d in s.post("/v1/embeddings", {"input": ["mats", *texts]})[1]["data"]]
    cosines = [sum(x * y for x, y in zip(vectors[0], v)) for v in vectors[1:]]
    for path in ("/v1/rerank", "/rerank", "/v2/rerank", "/reranking"):
        status, reply = s.post(path, {"query": "mats", "documents": texts})
        assert status == 200, reply
        order = sorted(range(4), key=lambda i: (-round(cosines[i], 7), i))
        assert [r["index"] for r in reply["results"]] == order, (reply, cosines)
        assert all(abs(r["relevance_score"] - cosines[r["index"]]) < 1e-6 for r in reply["results"]), reply
    best = s.post("/v1/rerank", {"query": "mats", "documents": [{"text": t} for t in texts], "top_n": 1, "return_documents": True})[1]["results"]
    assert len(best) == 1 and best[0]["document"]["text"] == texts[best[0]["index"]], best
    for first in ("mats", ["mats"]):
        scores = [d["score"] for d in s.post("/v1/score", {"text_1": first, "text_2": texts})[1]["data"]]
        assert all(abs(a - b) < 1e-6 for a, b in zip(scores, cosines)), scores
    pairs = [d["score"] for d in s.post("/score", {"text_1": texts[:2], "text_2": texts[2:]})[1]["data"]]
    assert len(pairs) == 2 and abs(pairs[1] - 1) < 1e-6, pairs
    refusal(s, "/v1/score", {"text_1": texts[:2], "text_2": texts}, "text_2")
    refusal(s, "/v1/rerank", {"query": "", "documents": texts}, "query")
    refusal(s, "/v1/rerank", {"query": "x", "documents": ["a", {"image": "b"}]}, "documents")
    listed = s.post("/rerank", {"query": "mats", "texts": texts, "return_text": True})[1]
    assert [r["index"] for r in listed] == order and listed[0]["text"] == texts[order[0]], listed
    assert all(abs(r["score"] - cosines[r["index"]]) < 1e-6 for r in listed), listed
    refusal(s, "/rerank", {"query": "x"}, "documents")
    refusal(s, "/rerank", {"query": "x", "documents": texts, "texts": texts}, "documents")
    for name in ("documents", "texts"):
        refusal(s, "/rerank", {"query": "x", name: []}, name)
    refusal(s, "/v1/score", {"text_1": [], "text_2": []}, "text_1")


@test
def vectors_are_cut_for_models_that_were_trained_so(s):
    refusal(s, "/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions")
    with Server("--matryoshka") as other:
        whole = other.post("/v1/embeddings", {"input": "a"})[1]["data"][0]["embedding"]
        cut = other.post("/v1/embeddings", {"input": "a", "dimensions": 8})[1]["data"][0]["embedding"]
        length = sum(x * x for x in whole[:8]) ** 0.5
        assert len(cut) == 8 and all(abs(x - y / length) < 1e-6 for x, y in zip(cut, whole)), (cut, whole)
        coded = other.post("/v1/embeddings", {"input": "a", "dimensions": 8, "encoding_format": "base64"})[1]["data"][0]["embedding"]
        assert len(base64.b64decode(coded)) == 32
        refusal(other, "/v1/embeddings", {"input": "a", "dimensions": len(whole) + 1}, "dimensions")


@test
def embeddings_of_the_last_token(s):
    ids = s.post("/tokenize", {"content": "the cat sat", "add_special": True})[1]["tokens"]
    means = [s.post("/v1/embeddings", {"input": ids[:n]})[1]["data"][0]["embedding"] for n in (1, 2)]
    with Server("--pooling", "last") as last:
        got = [last.post("/v1/embeddings", {"input": ids[:n]})[1]["data"][0]["embedding"] for n in (1, 2)]
        raw = last.post("/api/embeddings", {"prompt": "the cat sat"})[1]["embedding"]
        whole = last.post("/v1/embeddings", {"input": "the cat sat"})[1]["data"][0]["embedding"]
    assert got[0] == means[0] and got[1] != means[1]  # of one token both are the same
    length = sum(v * v for v in raw) ** 0.5
    assert all(abs(v / length - w) < 1e-6 for v, w in zip(raw, whole))


# ---- Anthropic and Ollama ----------------------------------------------------------------------

@test
def embeddings_as_the_model_says(_):
    """1_Pooling/config.json of sentence-transformers names the kind; --pooling is before it."""
    def vector(s):
        status, reply = s.post("/v1/embeddings", {"input": "the cat sat"})
        return reply["data"][0]["embedding"] if status == 200 else reply["error"]["message"]

    with tempfile.TemporaryDirectory() as top:
        model = Path(top) / "model"
        shutil.copytree(MODEL.parent / "llama-text", model)
        vectors = {}
        for mode in (None, "mean_tokens", "lasttoken", "cls_token"):
            for how in ((), ("--pooling", "mean"), ("--pooling", "last")):
                if mode:
                    (model / "1_Pooling").mkdir(exist_ok=True)
                    (model / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
                with Server(*how, model=model) as s:
                    vectors[mode, how[1:]] = vector(s)
        mean, last = vectors[None, ("mean",)], vectors[None, ("last",)]
        assert mean != last and vectors[None, ()] == vectors["mean_tokens", ()] == mean
        assert vectors["lasttoken", ()] == last and vectors["lasttoken", ("mean",)] == mean
        assert "--pooling" in vectors["cls_token", ()] and vectors["cls_token", ("last",)] == last


@test
def anthropic_messages(s):
    body = {"messages": HELLO, "system": "x", "max_tokens": 9, "temperature": 0,
            "ignore_eos": True}
    status, reply = s.post("/v1/messages", body)
    assert status == 200 and reply["type"] == "message" and reply["stop_reason"] == "max_tokens"
    text = reply["content"][0]["text"]
    status, _, raw = s.request("POST", "/v1/messages", {**body, "stream": True})
    blocks = events_of(raw)
    names = [b[0].removeprefix("event: ") for b in blocks]
    events = [json.loads(b[1].removeprefix("data: ")) for b in blocks]
    assert names == [e["type"] for e in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], names
    assert "".join(e["delta"]["text"] for e in events
                   if e["type"] == "content_block_delta") == text
    assert events[-2]["usage"]["output_tokens"] == 9
    blocks = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    count = [s.post("/v1/messages/count_tokens", {"messages": m})[1]["input_tokens"]
             for m in (HELLO, blocks)]
    assert count[0] == count[1] > 0
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    with_tools = s.post("/v1/messages/count_tokens", {"messages": HELLO, "tools": tools})[1]["input_tokens"]
    asked = s.post("/v1/messages", {"messages": HELLO, "tools": tools, "max_tokens": 1})[1]["usage"]
    assert with_tools == asked["input_tokens"] + asked["cache_read_input_tokens"] > count[0]
    thought = [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                                 {"type": "text", "text": "hello"}]}]
    status, reply = s.post("/v1/messages/count_tokens", {"messages": HELLO + thought + HELLO})
    assert status == 200 and reply["input_tokens"] > count[0], reply
    status, reply = s.post("/v1/messages", {"messages": HELLO})
    assert status == 400 and reply["type"] == "error" and "max_tokens" in reply["error"]["message"]
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    assert s.post("/v1/messages", {"messages": image, "max_tokens": 1})[0] == 400


@test
def ollama_endpoints(s):
    options = {"num_predict": 7, "temperature": 0, "stop": []}
    _, _, raw = s.request("POST", "/api/chat", {"model": "m", "messages": HELLO,
                                                "options": options})
    lines = [json.loads(line) for line in raw.decode().splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = s.post("/api/chat", {"model": "m", "messages": HELLO, "options": options,
                                 "stream": False})[1]
    assert whole["message"]["content"] == "".join(line["message"]["content"] for line in lines)
    assert whole["eval_count"] == lines[-1]["eval_count"] <= 7
    raw = {"prompt": "the cat", "raw": True, "stream": False, "options": options}
    assert "response" in s.post("/api/generate", raw)[1]
    plain = {"prompt": "the cat", "stream": False, "options": {"num_predict": 1}}
    read = [s.post("/api/generate", {**plain, **more})[1]["prompt_eval_count"]
            for more in ({}, {"system": ""}, {"system": "be brief"})]
    assert read[0] == read[1] < read[2], read  # an empty text is no system message
    assert s.get("/api/tags")[1]["models"][0]["name"] == "llama-text"
    loaded = s.get("/api/ps")[1]["models"][0]
    assert loaded["name"] == "llama-text" and loaded["size_vram"] == 0 < loaded["context_length"], loaded
    shown = s.post("/api/show", {"model": "m"})[1]
    assert "template" in shown and s.get("/api/version")[0] == 200
    count = shown["model_info"]["general.parameter_count"]
    assert shown["details"]["parameter_size"] == f"{count / 1e6:.2f}M" and count > 1000, shown
    assert shown["model_info"]["llama.context_length"] > 0 and shown["details"]["families"] == ["llama"], shown
    assert shown["details"]["quantization_level"] in ("F32", "F16", "BF16"), shown
    status, reply = s.post("/api/chat", {"messages": HELLO, "format": "xml"})
    assert status == 400 and isinstance(reply["error"], str)


sys.exit(run_tests())
