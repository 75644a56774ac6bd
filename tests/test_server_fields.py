#!/usr/bin/env python3
"""What a request asks for is done or refused by name, at every endpoint that makes text. Ends with
"N passed, N failed"."""
import sys

from server_process import HELLO, run_tests, test

# An endpoint -> a request of two tokens, and where the fields of sampling stand in it.
ASKS = {
    "/v1/chat/completions": ({"messages": HELLO, "max_tokens": 2}, None),
    "/v1/completions": ({"prompt": "the cat", "max_tokens": 2}, None),
    "/completion": ({"prompt": "the cat", "n_predict": 2}, None),
    "/v1/responses": ({"input": "the cat", "max_output_tokens": 2}, None),
    "/v1/messages": ({"messages": HELLO, "max_tokens": 2}, None),
    "/api/chat": ({"messages": HELLO, "stream": False}, "options"),
    "/api/generate": ({"prompt": "the cat", "stream": False}, "options"),
}


def properties_of(s, path):
    """(name, its schema, whether it stands within options) of a request's fields."""
    post = s.get("/openapi.json")[1]["paths"][path]["post"]
    fields = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    for name, schema in fields.items():
        yield name, schema, False
    for name, schema in fields.get("options", {}).get("properties", {}).items():
        yield name, schema, True


def ask(s, path, fields, inside=False):
    body, options = ASKS[path]
    limit = {"num_predict": 2, **fields} if inside else {"num_predict": 2}
    return s.post(path, {**body, options: limit, **({} if inside else fields)} if options
                  else {**body, **fields})


def is_neutral_only(schema):
    return "enum" in schema and "type" not in schema


@test
def what_no_endpoint_has_is_refused_by_all(s):
    refused = {path: {name for name, schema, _ in properties_of(s, path) if is_neutral_only(schema)}
               for path in ASKS}
    for path, names in refused.items():
        assert {"tfs_z", "epsilon_cutoff", "allowed_token_ids", "bad_words", "functions", "lora_request", "images",
                "structural_tag", "no_repeat_ngram_size"} <= names, (path, names)


@test
def refused_fields_take_only_what_asks_for_nothing(s):
    for path in ASKS:
        for name, schema, inside in properties_of(s, path):
            if not is_neutral_only(schema):
                continue
            status, reply = ask(s, path, {name: {"quipu": 2}}, inside)
            message = str(reply["error"])
            assert status == 400 and f'"{"options." if inside else ""}{name}"' in message, (path, name, reply)
        neutral = [(name, schema["enum"][0], inside) for name, schema, inside in properties_of(s, path)
                   if is_neutral_only(schema)]
        for within in (False, True):
            fields = {name: value for name, value, inside in neutral if inside == within}
            status, reply = ask(s, path, fields, within) if fields else (200, None)
            assert status == 200, (path, reply)


@test
def settings_mean_the_same_everywhere(s):
    for path in ASKS:
        inside = ASKS[path][1] is not None
        status, reply = ask(s, path, {"top_k": -1, "temperature": 0}, inside)
        assert status == 200, (path, reply)
        status, reply = ask(s, path, {"top_k": -2}, inside)
        assert status == 400 and "top_k" in str(reply), (path, reply)
        status, reply = ask(s, path, {"json_schema": {"type": "integer", "maximum": 3}}, inside)
        assert status == 200, (path, reply)
        status, reply = ask(s, path, {"json_schema": {"type": "quipu"}}, inside)
        assert status == 400 and "json_schema" in str(reply), (path, reply)


@test
def what_only_names_a_way_binds_nothing(s):
    for path in ASKS:
        status, reply = ask(s, path, {"guided_decoding_backend": "outlines"})
        assert status == 200, (path, reply)


@test
def stop_tokens_end_answers(s):
    body = {"prompt": "the cat", "max_tokens": 6, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    ids = s.post("/v1/completions", body)[1]["choices"][0]["token_ids"]
    body = {**body, "ignore_eos": False, "stop_token_ids": [ids[3]]}
    choice = s.post("/v1/completions", body)[1]["choices"][0]
    assert choice["token_ids"] == ids[:ids.index(ids[3])] and choice["finish_reason"] == "stop", choice
    for wrong in ([-1], ["a"], [1.5], list(range(40))):
        status, reply = s.post("/v1/completions", {**body, "stop_token_ids": wrong})
        assert status == 400 and "stop_token_ids" in reply["error"]["message"], reply


@test
def a_length_of_minus_one_is_none(s):
    for path, name in (("/v1/chat/completions", "max_tokens"),
                       ("/v1/chat/completions", "max_completion_tokens"), ("/v1/completions", "max_tokens"),
                       ("/v1/responses", "max_output_tokens")):
        body = {**ASKS[path][0], "stop_token_ids": list(range(3, 13)), "temperature": 4}
        status, reply = s.post(path, {**body, name: -1})
        assert status == 200, reply
        for wrong in (-3, 1.5, 2**31):
            status, reply = s.post(path, {**body, name: wrong})
            assert status == 400 and name in str(reply), reply


@test
def anthropic_formats_bind(s):
    form = {"type": "json_schema", "schema": {"type": "integer", "minimum": 7, "maximum": 7}}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        status, reply = s.post("/v1/messages", {**ASKS["/v1/messages"][0], **fields})
        assert status == 200 and reply["content"][0]["text"] == "7", reply
    status, reply = s.post("/v1/messages", {**ASKS["/v1/messages"][0],
                                            "output_config": {"format": {"type": "xml"}}})
    assert status == 400 and "output_config.format" in reply["error"]["message"], reply


@test
def a_window_of_penalties_is_all_or_nothing(s):
    for path in ASKS:
        inside = ASKS[path][1] is not None
        for fields in ({"repeat_last_n": 64, "repeat_penalty": 1}, {"repeat_last_n": -1, "repeat_penalty": 1.5},
                       {"repeat_last_n": 1 << 20, "presence_penalty": 1}):
            status, reply = ask(s, path, fields, inside)
            assert status == 200, (path, fields, reply)
        status, reply = ask(s, path, {"repeat_last_n": 64, "repeat_penalty": 1.5}, inside)
        assert status == 400 and "repeat_last_n" in str(reply) and "beside a penalty" in str(reply), (path, reply)
    body = {"prompt": "the cat the cat", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    texts = [s.post("/v1/completions", {**body, **fields})[1]["choices"][0]["text"]
             for fields in ({}, {"frequency_penalty": -100}, {"frequency_penalty": -100, "repeat_last_n": 0})]
    assert texts[0] == texts[2] != texts[1], texts


@test
def an_order_of_filters_is_refused(s):
    usual = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    for path in ASKS:
        assert ask(s, path, {"samplers": usual})[0] == 200, path
        for wrong in (["top_k"], usual[::-1], "k"):
            status, reply = ask(s, path, {"samplers": wrong})
            assert status == 400 and "samplers" in str(reply), (path, reply)


@test
def calls_of_earlier_turns_are_checked(s):
    def calls(value):
        return {"messages": [*HELLO, {"role": "assistant", "content": "", "tool_calls": value}, *HELLO]}

    good = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for path in ("/v1/chat/completions", "/api/chat"):
        for value in ([], [good], [{"function": {"name": "f", "arguments": {"x": 1}}}], [{"function": {"name": "f"}}], None):
            status, reply = ask(s, path, calls(value))
            assert status == 200, (path, value, reply)
        for value, word in (({"a": 1}, "must be a list"), ([{"id": "a"}], "without a name"), ([5], "without a name"),
                            ([{"function": {"name": "f", "arguments": 7}}], "found a number"),
                            ([{"function": {"name": 3}}], "without a name")):
            status, reply = ask(s, path, calls(value))
            assert status == 400 and word in str(reply), (path, value, reply)


@test
def coded_bodies_are_refused(s):
    status, reply = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, **{"Content-Encoding": "gzip"})
    assert status == 415 and "Content-Encoding: gzip" in reply["error"]["message"], reply
    status, reply = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, **{"Content-Encoding": "identity"})
    assert status == 200, reply


@test
def images_are_refused(s):
    for message in ({"role": "user", "content": "what is it?", "images": ["aGVsbG8="]},
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}):
        for path in ("/v1/chat/completions", "/api/chat"):
            status, reply = ask(s, path, {"messages": [message]})
            assert status == 400 and "only text" in str(reply), (path, reply)


@test
def a_prompt_that_is_too_long_is_said_in_the_words_of_each_api(s):
    long = "cat " * 3000
    words = {"/v1/chat/completions": "maximum context length is", "/v1/completions": "maximum context length is",
             "/v1/responses": "maximum context length is", "/v1/messages": "prompt is too long: ",
             "/completion": "exceeds the available context size"}
    for path, expected in words.items():
        fields = {"messages": [{"role": "user", "content": long}]} if "messages" in ASKS[path][0] else \
            {"input": long} if path == "/v1/responses" else {"prompt": long}
        status, reply = ask(s, path, fields)
        assert status == 400 and expected in str(reply["error"]), (path, reply)


@test
def ollama_loads_and_lists_the_model(s):
    for path, body, reason in (("/api/generate", {}, "load"), ("/api/generate", {"prompt": ""}, "load"),
                               ("/api/generate", {"keep_alive": 0}, "unload"),
                               ("/api/generate", {"keep_alive": "0s"}, "unload"),
                               ("/api/chat", {"messages": []}, "load"), ("/api/chat", {"keep_alive": "5m"}, "load")):
        status, reply = s.post(path, {"model": "m", "stream": False, **body})
        assert status == 200 and reply["done"] is True and reply["done_reason"] == reason, (path, body, reply)
        assert "message" in reply if path == "/api/chat" else reply["response"] == "", reply
    listed, loaded = (s.get(path)[1]["models"][0] for path in ("/api/tags", "/api/ps"))
    assert listed["digest"] == loaded["digest"] and len(bytes.fromhex(listed["digest"])) == 32, listed


@test
def paths_of_other_servers(s):
    assert s.get("/v1/models/")[1] == s.get("/v1/models")[1]
    assert s.get("/ping")[0] == 200 and "version" in s.get("/version")[1]
    assert s.get("/load")[1] == {"server_load": 0}


def made(s, path, fields):
    inside = ASKS[path][1] is not None
    status, reply = ask(s, path, {"num_predict": 8, "seed": 3, **fields} if inside else fields, inside)
    assert status == 200, (path, fields, reply)
    texts = {"/v1/chat/completions": lambda r: r["choices"][0]["message"]["content"], "/completion": lambda r: r["content"],
             "/v1/completions": lambda r: r["choices"][0]["text"], "/api/generate": lambda r: r["response"]}
    return texts[path](reply)


@test
def ways_of_choosing_tokens_matter(s):
    for path, more in (("/v1/chat/completions", {"max_tokens": 8, "seed": 3}), ("/completion", {"n_predict": 8, "seed": 3}),
                       ("/v1/completions", {"max_tokens": 8, "seed": 3}), ("/api/generate", {})):
        greedy = made(s, path, {**more, "temperature": 0})
        for likeliest in ({"top_n_sigma": 1e-6}, {"mirostat": 2, "mirostat_tau": 0}, {"typical_p": 1, "top_k": 1}):
            assert made(s, path, {**more, "temperature": 2, **likeliest}) == greedy, (path, likeliest)
        base = {**more, "temperature": 2, "top_k": 1}
        for other in ({"xtc_probability": 1, "xtc_threshold": 0, "top_k": 0}, {"min_keep": 40}):
            assert made(s, path, {**base, **other}) != greedy, (path, other)
    many = s.post("/v1/completions", {"prompt": "a", "n": 4, "max_tokens": 6, "temperature": 1, "mirostat": 2, "seed": 1})[1]["choices"]
    alone = [s.post("/v1/completions", {"prompt": "a", "max_tokens": 6, "temperature": 1, "mirostat": 2, "seed": 1 + i})[1]["choices"][0]["text"]
             for i in range(4)]
    assert [c["text"] for c in many] == alone and len(set(alone)) > 1, (many, alone)
    assert s.post("/completion", {"prompt": "a", "mirostat": 2, "temperature": 0})[0] == 400
    assert s.post("/completion", {"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": [""]})[0] == 400


@test
def what_is_no_text_is_refused_by_name(s):
    def parts(path, *more):
        name = "input" if path == "/v1/responses" else "messages"
        return s.post(path, {name: [{"role": "user", "content": [{"type": "input_text" if name == "input" else "text", "text": "x"}, *more]}],
                             "max_tokens": 1, "max_output_tokens": 1})
    for path, part in (("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}),
                       ("/v1/chat/completions", {"type": "input_audio", "input_audio": {"data": "x"}}),
                       ("/v1/messages", {"type": "image", "source": {"type": "base64", "data": "x"}}),
                       ("/v1/messages", {"type": "document", "source": {"type": "base64", "data": "x"}}),
                       ("/v1/responses", {"type": "input_image", "image_url": "data:image/png;base64,x"}),
                       ("/v1/responses", {"type": "input_file", "file_id": "x"})):
        status, reply = parts(path, part)
        assert status == 400 and part["type"] in reply["error"]["message"], (part, reply)
    document = {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "one two"}}
    counts = [s.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, d]}]})[1]["input_tokens"]
              for d in (document, {"type": "text", "text": "t\none two\n"})]
    assert counts[0] == counts[1], counts
    quoted = {"messages": HELLO, "tools": [{"type": "function", "function": {"name": 'a"b'}}], "tool_choice": "required"}
    for path, body, named in (("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "web_search"}]}, "web_search"),
                              ("/v1/chat/completions", quoted, "the name of a tool has a quote or a backslash"),
                              ("/v1/messages", {"messages": HELLO, "max_tokens": 1, "container": "c"}, "container"),
                              ("/v1/messages", {"messages": HELLO, "max_tokens": 1, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
                              ("/v1/responses", {"input": "x", "include": ["message.output_text.logprobs"]}, "logprobs"),
                              ("/v1/responses", {"input": [{"type": "computer_call", "id": "x"}]}, "computer_call")):
        status, reply = s.post(path, body)
        assert status == 400 and named in str(reply), (path, reply)


sys.exit(run_tests())
