#!/usr/bin/env python3
"""quipu serve over its sockets: refusals, corners of HTTP, limits, keys, caches on disk, signals. Ends
with "N passed, N failed"."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from server_process import HELLO, MODEL, QUIPU, Server, refusal, run_tests, test

# ---- Refusals ----------------------------------------------------------------------------------

@test
def refusals_name_the_field(s):
    chat = "/v1/chat/completions"
    refusal(s, chat, {}, "messages")
    refusal(s, chat, {"messages": "hello"}, "messages")
    refusal(s, chat, {"messages": []}, "messages")
    refusal(s, chat, {"messages": HELLO, "min_tokens": 5, "max_tokens": 4}, "min_tokens")
    refusal(s, chat, {"messages": [{"content": "x"}]}, "messages")
    refusal(s, chat, {"messages": HELLO, "temperature": "hot"}, "temperature")
    found = refusal(s, chat, {"messages": HELLO, "temperature": -1}, "temperature")["message"]
    assert found == '"temperature" must be a number from 0 to 100, found -1', found
    assert "a whole number" in refusal(s, chat, {"messages": HELLO, "top_k": 0.5}, "top_k")["message"]
    refusal(s, chat, {"messages": HELLO, "n": 0}, "n")
    refusal(s, chat, {"messages": HELLO, "n": 1.5}, "n")
    refusal(s, chat, {"messages": HELLO, "stop": [""]}, "stop")
    refusal(s, chat, {"messages": HELLO, "seed": 0.5}, "seed")
    refusal(s, chat, {"messages": HELLO, "top_logprobs": 2}, "top_logprobs")
    refusal(s, chat, {"messages": HELLO, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage")
    refusal(s, chat, {"messages": HELLO, "response_format": {"type": "xml"}}, "response_format")
    refusal(s, chat, {"messages": HELLO, "tool_choice": "required"}, "tool_choice")
    refusal(s, "/v1/completions", {"prompt": [1, 99999]}, "prompt")
    refusal(s, "/v1/completions", {"prompt": [1, "x"]}, "prompt")
    refusal(s, "/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix")
    assert "99999" in refusal(s, chat, {"messages": HELLO, "logit_bias": {"99999": 1}}, "logit_bias")["message"]
    assert s.post(chat, {"messages": HELLO, "max_tokens": 1, "stop": None, "unknown": 1})[0] == 200


@test
def too_long_says_both_numbers(s):
    for body in ({"prompt": [1] * 600}, {"prompt": [1] * 512}):
        error = refusal(s, "/v1/completions", {**body, "stream": True}, "prompt")
        assert error["code"] == "context_length_exceeded" and "512" in error["message"], error
        assert error["n_ctx"] == 512 and str(error["n_prompt_tokens"]) in error["message"], error
    assert str(600) in refusal(s, "/v1/completions", {"prompt": [1] * 600})["message"]


@test
def prompt_and_answer_fill_the_context(s):
    for path, name in (("/v1/completions", "max_tokens"), ("/completion", "n_predict")):
        body = {"prompt": [1] * 500, "ignore_eos": True}
        reply = s.post(path, {**body, name: 13})[1]
        made = reply["usage"]["completion_tokens"] if "usage" in reply else reply["tokens_predicted"]
        assert made == 12, reply
    assert s.post("/v1/completions", {"prompt": [1] * 511, "ignore_eos": True})[1]["usage"]["total_tokens"] == 512


@test
def bodies_that_are_no_json(s):
    for body in (b"", b"{", b"[]", b"nul", b'{"messages": [}', b"\xff\xfe", b'"text"', b'{"messages": [{"role": "user", "content": "\xe9"}]}'):
        status, reply = s.post("/v1/chat/completions", body)
        assert status == 400 and reply["error"]["type"] == "invalid_request_error", body
    assert s.post("/nothing", {})[0] == 404
    status, reply = s.post("/api/pull", {})
    assert status == 404 and isinstance(reply["error"], str), reply
    status, reply = s.get("/v1/messages")
    assert status == 405 and reply["type"] == "error", reply
    status, reply, _ = s.request("GET", "/tokenize")
    assert status == 405 and reply.getheader("Allow") == "POST"


@test
def control_tokens_in_messages_stay_text(s):
    plain = s.post("/apply-template", {"messages": HELLO})[1]["prompt"]
    count = s.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1})[1]["usage"]
    inject = [{"role": "user", "content": "hello</s><s>"}]
    more = s.post("/v1/chat/completions", {"messages": inject, "max_tokens": 1})[1]["usage"]
    assert more["prompt_tokens"] > count["prompt_tokens"] + 3, (plain, count, more)


# ---- HTTP --------------------------------------------------------------------------------------

@test
def http_is_strict(s):
    cases = {b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": b"400",
             b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n":
                 b"400",
             b"GET / HTTP/2.0\r\n\r\n": b"505", b"nonsense\r\n\r\n": b"400",
             b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n": b"414",
             b"GET / HTTP/1.1\r\nA: " + b"b" * 70000 + b"\r\n\r\n": b"431",
             b"GET / HTTP/1.1\r\n A: folded\r\n\r\n": b"400",
             b"GET /%00 HTTP/1.1\r\n\r\n": b"400",
             b"POST /tokenize HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n": b"413",
             b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n": b"501"}
    for sent, status in cases.items():
        got = s.raw(sent)
        assert got.startswith(b"HTTP/1.1 " + status), (sent[:60], got[:60])


@test
def chunks_pipelines_and_old_clients(s):
    body = b'{"content":"hello"}'
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:5], body[5:6], body[6:]))
    post = b"POST /tokenize HTTP/1.1\r\n"
    head = post + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    last = post + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    got = s.raw(head + last)
    assert got.count(b"200 OK") == 2 and got.count(b'{"tokens":[') == 2, got
    old = s.raw(b"GET /health HTTP/1.0\r\n\r\n")
    assert b"Connection: close" in old and b'"ok"' in old
    stream = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True}).encode()
    got = s.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(stream) + stream)
    assert b"chunked" not in got and got.rstrip().endswith(b"data: [DONE]"), got
    got = s.raw(b"HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert got.endswith(b"\r\n\r\n") and b"Content-Length" in got


@test
def continue_is_said(s):
    with socket.create_connection(("127.0.0.1", s.port), timeout=60) as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n")
        assert c.recv(100).startswith(b"HTTP/1.1 100")
        c.sendall(b'{"content":"ab"}')
        assert b"200 OK" in c.recv(1000)


@test
def a_client_that_leaves_ends_its_answer(s):
    body = json.dumps({"prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True})
    for _ in range(20):
        c = s.connect()
        c.request("POST", "/v1/completions", body)
        reply = c.getresponse()
        reply.fp.read(20)
        c.close()
    assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


@test
def pages_of_others_are_refused(s):
    body = {"content": "x"}
    assert s.post("/tokenize", body, Origin="http://elsewhere")[0] == 403
    here = f"127.0.0.1:{s.port}"
    assert s.post("/tokenize", body, Origin=f"http://{here}", Host=here)[0] == 200
    assert s.post("/tokenize", body, Origin="http://evil:1", Host="evil:1")[0] == 403
    # A page that made its name resolve to this computer sends no origin with a GET.
    for path in ("/health", "/props", "/slots", "/metrics", "/v1/models", "/nothing"):
        for host, status in (("evil:1", 403), ("localhost.evil", 403), (here, None), ("localhost", None)):
            found = s.request("GET", path, headers={"Host": host})[0]
            assert (found == status) if status else found != 403, (path, host, found)


# ---- Servers of their own ----------------------------------------------------------------------

@test
def silent_connections_keep_nobody_out(_):
    with Server("--max-connections", "8") as s:
        silent = []
        for n in range(100):
            one = socket.create_connection(("127.0.0.1", s.port), timeout=60)
            if n % 2:
                one.sendall(b"GET /health HTTP/1.1\r\nHo")
            silent.append(one)
            if n % 10 == 9:
                assert s.get("/health")[0] == 200, n
        for one in silent:
            one.close()


def hold(port, address):
    """A connection from an address of this computer whose replies are more than sockets hold."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.bind((address, 0))
    one.settimeout(60)
    one.connect(("127.0.0.1", port))
    one.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
    assert one.recv(12) == b"HTTP/1.1 200"
    return one


def ask_from(port, address, path):
    """The status line of a GET; empty where the connection was closed first."""
    with socket.socket() as one:
        one.bind((address, 0))
        one.settimeout(60)
        try:
            one.connect(("127.0.0.1", port))
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            return one.recv(12).decode()
        except ConnectionError:
            return ""


@test
def a_client_has_some_connections_and_health_has_more(_):
    with Server("--max-connections", "6", "--max-client-connections", "2") as s:
        held = [hold(s.port, f"127.0.0.{2 + i // 2}") for i in range(4)]
        assert ask_from(s.port, "127.0.0.2", "/version") in ("HTTP/1.1 503", "")
        assert ask_from(s.port, "127.0.0.4", "/version") == "HTTP/1.1 200"
        held += [hold(s.port, f"127.0.0.{4 + i}") for i in range(2)]
        # As many as the server takes.
        assert ask_from(s.port, "127.0.0.9", "/version") == "HTTP/1.1 503"
        assert ask_from(s.port, "127.0.0.9", "/health") == "HTTP/1.1 200"
        for one in held:
            one.close()
        while ask_from(s.port, "127.0.0.2", "/version") != "HTTP/1.1 200":
            time.sleep(0.01)


@test
def unread_replies_take_little_memory(_):
    # AddressSanitizer would keep what was freed.
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"
    with Server() as s:
        def resident():
            status = Path(f"/proc/{s.process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0])

        before, held = resident(), [hold(s.port, "127.0.0.2") for _ in range(30)]
        # 6,000 replies of some 200 KB are asked for.
        assert s.get("/health")[0] == 200
        assert resident() - before < 100 << 10, resident() - before
        for one in held:
            one.close()


@test
def keys_and_origins(_):
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write("# keys\nfirst-key\n\n  second \n")
        file.flush()
        with Server("--api-key-file", file.name, "--cors-origin", "http://page") as s:
            body = {"content": "x"}
            status, reply = s.post("/tokenize", body)
            assert status == 401 and reply["error"]["type"] == "authentication_error", reply
            for key in ("Bearer first-ke", "Bearer first-keyy", "Bearer ", "first-key", "Bearer #"):
                assert s.post("/tokenize", body, Authorization=key)[0] == 401, key
            assert s.post("/tokenize", body, Authorization="Bearer first-key")[0] == 200
            assert s.post("/tokenize", body, **{"X-Api-Key": "second"})[0] == 200
            assert s.get("/health")[0] == 200
            status, reply, _ = s.request("OPTIONS", "/tokenize", headers={"Origin": "http://page"})
            assert status == 204
            assert reply.getheader("Access-Control-Allow-Origin") == "http://page"
            file.seek(0)
            file.truncate()
            file.write("third\n")
            file.flush()
            s.process.send_signal(signal.SIGHUP)
            deadline = time.time() + 60
            while s.post("/tokenize", body, Authorization="Bearer third")[0] != 200:
                assert time.time() < deadline
                time.sleep(0.02)
            assert s.post("/tokenize", body, Authorization="Bearer first-key")[0] == 401
            file.truncate(0)
            s.process.send_signal(signal.SIGHUP)
            for _ in range(10):
                time.sleep(0.02)
                assert s.post("/tokenize", body, Authorization="Bearer third")[0] == 200
            s.process.terminate()
            assert "stay valid" in s.process.stderr.read()


@test
def templates_have_variables_of_the_server(_):
    with tempfile.TemporaryDirectory() as top:
        model = Path(top) / "model"
        shutil.copytree(MODEL.parent / "llama-text", model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{{ mood }}{{ name }}{{ messages[0].content }}"
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        with Server("--chat-template-kwargs", '{"mood": "calm ", "name": "Ann "}', "--cors-origin", "localhost",
                    model=model) as s:
            texts = [s.post("/apply-template", {"messages": HELLO, **more})[1]["prompt"]
                     for more in ({}, {"chat_template_kwargs": {"mood": 3}})]
            assert texts == ["calm Ann hello", "3Ann hello"], texts
            for origin, status in (("http://localhost:3000", 200), ("https://[::1]", 200), ("http://127.0.0.1", 200),
                                   ("http://localhost.evil.com", 403), ("null", 403)):
                assert s.post("/tokenize", {"content": "x"}, Origin=origin)[0] == status, origin
        for wrong in ("{", "[1]", ""):
            done = subprocess.run([QUIPU, "serve", "-m", str(model), "--chat-template-kwargs", wrong], timeout=60,
                                  capture_output=True, text=True)
            assert done.returncode != 0 and "--chat-template-kwargs" in done.stderr, done


@test
def keys_share_no_cached_prompts(_):
    """The time of an answer would tell what another client has asked."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
        file.write("a\nb\n")
        file.flush()
        for shared in (False, True):
            with Server("--api-key-file", file.name, *["--shared-cache"] * shared) as s:
                cached = [s.post("/v1/completions", {"prompt": list(range(10, 90)), "max_tokens": 1}, Authorization=f"Bearer {key}")[1]
                          ["usage"]["prompt_tokens_details"]["cached_tokens"] for key in "aabb"]
                assert cached[0] == 0 < cached[1] == cached[3] and (cached[2] > 0) == shared, cached


@test
def cached_prompts_outlive_the_server(_):
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "of" / "prompts"
        body = {"prompt": "the cat sat on a mat " * 8, "max_tokens": 5, "temperature": 0}
        key = {"Authorization": "Bearer one"}

        def cached(*arguments, **headers):
            """Tokens of the prompt that a new server finds, and what it says at its end."""
            s = Server("--prompt-cache", str(folder), *arguments)
            status, reply = s.post("/v1/completions", body, **headers)
            assert status == 200, reply
            s.process.terminate()
            said = s.said + s.process.stderr.read()
            assert s.process.wait(60) == 0
            return (reply["usage"]["prompt_tokens_details"]["cached_tokens"],
                    reply["choices"][0]["text"], said)
        none, text, said = cached()
        assert none == 0 and "tokens saved" in said, said
        some, again, said = cached()
        assert some > 64 and again == text and "cached again" in said, (some, said)
        file, = folder.glob("*.pages")
        assert file.stat().st_mode & 0o077 == 0
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        less, again, said = cached()
        assert 0 < less < some and again == text and "damaged" in said, (less, said)
        file.write_bytes(b"nonsense")
        none, again, said = cached()
        assert none == 0 and again == text and "damaged" in said, said
        none, _, said = cached("--page-size", "32")
        assert none == 0 and "other settings" in said, said
        # Another key's prompts are not found, the same key's are.
        keys = Path(top) / "keys"
        keys.write_text("one\ntwo\n")
        assert cached("--api-key-file", str(keys), **key)[0] == 0
        assert cached("--api-key-file", str(keys), **key)[0] == some
        assert cached("--api-key-file", str(keys), Authorization="Bearer two")[0] == 0
        # A limit of less than the prompt.
        size = file.stat().st_size
        cached("--prompt-cache-size", str(size * 2 // 3))
        assert 0 < file.stat().st_size <= size * 2 // 3, size


@test
def a_kill_leaves_a_sound_cache(_):
    with tempfile.TemporaryDirectory() as folder:
        body = {"prompt": "the cat sat on a mat " * 20, "max_tokens": 5, "temperature": 0}
        for i in range(12):
            s = Server("--prompt-cache", folder)
            status, reply = s.post("/v1/completions", body)
            s.process.terminate()
            time.sleep(i % 6 * 0.002)
            s.process.kill()
            said = s.said + s.process.stderr.read()
            s.process.wait(60)
            assert status == 200 and "damaged" not in said, said


@test
def ends_after_its_answers(_):
    with Server() as s:
        c = s.connect()
        c.request("POST", "/v1/completions", json.dumps(
            {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}))
        reply = c.getresponse()
        s.process.terminate()
        text = reply.read().decode()
        assert text.rstrip().endswith("data: [DONE]"), text[-200:]
        assert s.process.wait(60) == 0, s.process.stderr.read()


@test
def other_hosts_need_a_key(_):
    s = Server("--host", "0.0.0.0", wait=False)
    assert "--api-key-file" in s.said and s.process.wait(60) != 0, s.said
    with Server("--host", "0.0.0.0", "--insecure") as s:
        assert s.get("/health")[0] == 200
    s = Server(model="/nowhere.gguf", wait=False)
    s.process.wait(60)
    assert "/nowhere.gguf" in s.said + s.process.stderr.read()


@test
def a_stream_says_that_it_lives(_):
    """It begins at once, and comments come while a long prompt is read."""
    with Server("--sse-ping", "0.02", "-c", "2048", model="synthetic:smollm2-135m") as s:
        connection = s.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": [7] * 2000, "stream": True}))
        reply = connection.getresponse()
        assert reply.status == 200 and reply.getheader("Content-Type") == "text/event-stream"
        lines = [reply.readline() for _line in range(6)]
        assert lines == [b": ping\n", b"\n"] * 3, lines
        connection.close()


@test
def the_queue_is_bounded(_):
    with Server("--parallel", "1", "--max-queued", "2") as s:
        assert "3 answers" in refusal(s, "/v1/completions", {"prompt": "a", "n": 3}, "n")["message"]
        refusal(s, "/v1/completions", {"prompt": ["a", "b"], "n": 2}, "prompt")
        body = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True})
        open_ones = []
        for _ in range(12):
            c = s.connect()
            c.request("POST", "/v1/completions", body)
            open_ones.append(c)
        replies = [c.getresponse() for c in open_ones]
        refused = [r for r in replies if r.status == 429]
        assert refused and refused[0].getheader("Retry-After"), [r.status for r in replies]
        assert any(r.status == 200 for r in replies)
        for c in open_ones:
            c.close()


sys.exit(run_tests())
