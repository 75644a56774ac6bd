#!/usr/bin/env python3
"""What operators set: several addresses, unix sockets, TLS whose certificate is replaced, a prefix of all paths, the access
log, and ids and traces of requests. Ends with "N passed, N failed"."""
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from pathlib import Path

from server_process import HELLO, Server, run_tests, test

TLS = Path(__file__).resolve().parent / "golden" / "tls"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Lines:
    """The lines that a server writes to stderr after it is ready."""

    def __init__(self, server):
        self.lines, self.more = [], threading.Condition()
        threading.Thread(target=self.read, args=(server.process.stderr,), daemon=True).start()

    def read(self, stream):
        for line in stream:
            with self.more:
                self.lines.append(line.rstrip("\n"))
                self.more.notify_all()

    def wait(self, what, seconds=60):
        with self.more:
            assert self.more.wait_for(lambda: any(what in line for line in self.lines), seconds), (what, self.lines)
            return next(line for line in self.lines if what in line)


def ask(connection, path="/v1/completions", headers=None, **body):
    connection.request("POST", path, json.dumps({"prompt": "a", "max_tokens": 3, **body}), headers or {})
    reply = connection.getresponse()
    return reply, json.loads(reply.read())


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


@test
def several_addresses_and_unix_sockets(taken):
    with tempfile.TemporaryDirectory() as top:
        paths = [f"{top}/a.sock", f"{top}/b"]
        with Server("--host", "127.0.0.1", "--host", "127.0.0.2", "--host", paths[0], "--host", f"unix:{paths[1]}") as s:
            for connection in (http.client.HTTPConnection("127.0.0.2", s.port), Unix(paths[0]), Unix(paths[1])):
                assert ask(connection)[0].status == 200
                connection.close()
        assert not any(map(os.path.exists, paths)), "sockets are removed"
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(paths[0])
        dead.close()  # a server that was killed has left it
        with Server("--host", "127.0.0.1", "--host", paths[0]):
            other = Server("--host", "127.0.0.1", "--host", paths[0], wait=False)
            assert other.process.wait(60) and "cannot listen" in other.said + other.process.stderr.read()
        many = [a for i in range(17) for a in ("--host", f"127.0.0.{i + 1}")]
        for wrong, said in ((("--host", f"{top}/{'x' * 120}.sock"), "1 to"), (many, "16 hosts at most"),
                            (("--insecure", "--host", "no.such.name.invalid"), "name an address"),
                            (("--port", str(taken.port)), "choose another port")):
            s = Server(*wrong, wait=False)
            assert s.process.wait(60) and said in s.said + s.process.stderr.read(), wrong
        open_to_all = Server("--host", "127.0.0.1", "--host", "0.0.0.0", wait=False)
        assert open_to_all.process.wait(60) and "0.0.0.0" in open_to_all.said + open_to_all.process.stderr.read()


def https(port, name):
    context = ssl.create_default_context(cafile=str(TLS / f"{name}.pem"))
    return http.client.HTTPSConnection("localhost", port, context=context, timeout=60)


class SecureServer(Server):
    name = "first"

    def connect(self):
        return https(self.port, self.name)


@test
def tls_and_its_new_certificate(_):
    with tempfile.TemporaryDirectory() as top:
        for kind in ("pem", "key"):
            shutil.copy(TLS / f"first.{kind}", f"{top}/now.{kind}")
        with SecureServer("--tls-cert", f"{top}/now.pem", "--tls-key", f"{top}/now.key") as s:
            lines = Lines(s)
            old = https(s.port, "first")
            assert ask(old)[0].status == 200
            events = s.stream("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5})
            assert events[-1] == "[DONE]", events
            shutil.copy(TLS / "second.pem", f"{top}/now.pem")  # the key is still the first one's
            s.process.send_signal(signal.SIGHUP)
            lines.wait("stays")
            shutil.copy(TLS / "second.key", f"{top}/now.key")
            s.process.send_signal(signal.SIGHUP)
            lines.wait("read again")
            assert ask(https(s.port, "second"))[0].status == 200
            assert ask(old)[0].status == 200, "open connections go on"
            try:
                https(s.port, "first").request("GET", "/health")
                raise AssertionError("the old certificate is still shown")
            except ssl.SSLError:
                pass
            with socket.create_connection(("127.0.0.1", s.port)) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                plain.settimeout(60)
                try:
                    assert b"200" not in plain.recv(100)
                except ConnectionError:
                    pass  # the server ends it while our bytes are unread
        for wrong in (("--tls-cert", f"{top}/none.pem"), ("--tls-cert", str(TLS / "first.pem"), "--tls-key", str(TLS / "second.key"))):
            s = Server(*wrong, wait=False)
            assert s.process.wait(60) and "--tls-cert" in s.said + s.process.stderr.read(), wrong


@test
def paths_with_a_prefix(_):
    with Server("--api-prefix", "/llm", wait=False) as s:
        while s.get("/llm/health")[0] != 200:
            time.sleep(0.01)
        assert s.post("/llm/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        for path in ("/v1/completions", "/llmx/v1/completions"):
            assert s.post(path, {"prompt": "a", "max_tokens": 1})[0] == 404, path
        assert b"<html" in s.get("/llm/")[1] and s.get("/llm")[0] == 308
    wrong = Server("--api-prefix", "llm/", wait=False)
    assert wrong.process.wait(60) and "--api-prefix" in wrong.said + wrong.process.stderr.read()


@test
def ids_and_traces(s):
    reply = s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {"X-Request-Id": "mine-1", "traceparent": TRACE})[1]
    assert reply.getheader("X-Request-Id") == "mine-1" and reply.getheader("traceparent") == TRACE
    for bad in ("a b", "x" * 65, 'a"b'):
        reply = s.request("GET", "/health", headers={"X-Request-Id": bad, "traceparent": TRACE + "0"})[1]
        assert len(reply.getheader("X-Request-Id")) == 24 and reply.getheader("traceparent") is None, bad
    assert s.request("POST", "/v1/messages", {"messages": HELLO, "max_tokens": 1})[1].getheader("request-id")


@test
def the_access_log(_):
    with Server("--log-json", wait=False) as s:
        lines = Lines(s)
        lines.wait('"ready"')
        s.request("POST", "/v1/completions", {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}, {"X-Request-Id": "one", "traceparent": TRACE})
        entry = json.loads(lines.wait('"request_id":"one"'))
        assert (entry["method"], entry["path"], entry["status"], entry["client"]) == ("POST", "/v1/completions", 200, "127.0.0.1"), entry
        assert entry["completion_tokens"] == 4 and entry["prompt_tokens"] >= 3 and entry["trace_id"] == TRACE[3:35], entry
        assert entry["seconds"] >= entry["completion_seconds"] >= 0 and entry["tokens_per_second"] > 0 and entry["bytes"] > 20, entry
        s.request("GET", '/no%22such', headers={"X-Request-Id": "two"})
        assert json.loads(lines.wait('"request_id":"two"'))["status"] == 404
        for line in lines.lines:
            json.loads(line)
        connection = s.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "ignore_eos": True, "stream": True, "n": 128}), {"X-Request-Id": "three"})
        connection.getresponse().read(10)
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        assert '"left":true' in lines.wait('"request_id":"three"')
    with Server("--access-log", wait=False) as s:
        lines = Lines(s)
        lines.wait("ready")
        s.request("GET", "/a%22b", headers={"X-Request-Id": "four"})
        assert "GET 404" in lines.wait("four") and "\\x22" in lines.wait("four")


@test
def a_length_for_requests_without_one(_):
    with Server("-n", "5") as s:
        body = {"messages": HELLO, "ignore_eos": True}
        assert s.post("/v1/chat/completions", body)[1]["usage"]["completion_tokens"] == 5
        assert s.post("/v1/chat/completions", {**body, "max_tokens": 7})[1]["usage"]["completion_tokens"] == 7


sys.exit(run_tests())
