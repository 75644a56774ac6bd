"""A quipu serve of its own for each suite of the server, and what runs their tests."""
import atexit
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MODEL = Path(__file__).resolve().parent / "golden" / "models" / "llama-text.gguf"
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def events_of(text):
    """The lines of each event of a stream. Comments, which a server sends while it has nothing to say, are none."""
    blocks = [[line for line in block.split("\n") if not line.startswith(":")] for block in text.decode().split("\n\n")]
    return [block for block in blocks if any(block)]


class Server:
    """A quipu serve of its own, on a free port. Its streams have comments wherever it is silent for 10 ms, which
    they would else have on a slow day only."""

    def __init__(self, *arguments, model=MODEL, models=None, wait=True):
        self.process = subprocess.Popen(
            [QUIPU, "serve", *(("--models", str(models)) if models else ("-m", str(model))), "--port", "0", "-t", "1", "--device", "cpu",
             "--sse-ping", "0.01", *arguments],
            stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # one that a failed test leaves would keep our pipes open
        # The model is read meanwhile, and may say something first.
        self.said, line = "", "..."
        while line and "listening" not in line:
            line = self.process.stderr.readline()
            self.said += line
        self.port = int(re.search(r"listening at https?://.*:(\d+)", line)[1]) if line else 0
        while wait and self.get("/health")[0] != 200:
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.stderr.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def request(self, method, path, body=None, headers=None):
        """Status, headers and body, as JSON where it is that."""
        connection = self.connect()
        data = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        kind = reply.getheader("Content-Type", "")
        return reply.status, reply, json.loads(text) if "application/json" in kind else text

    def get(self, path, **headers):
        status, _, body = self.request("GET", path, headers=headers)
        return status, body

    def post(self, path, body, **headers):
        status, _, reply = self.request("POST", path, body, headers)
        return status, reply

    def stream(self, path, body):
        """The events of a stream: parsed, and "[DONE]" as it is."""
        status, _, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, (status, text)
        lines = [next(line for line in event if line.startswith("data: ")) for event in events_of(text)]
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]

    def raw(self, data, seconds=60):
        """What comes back for bytes, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as s:
            s.sendall(data)
            got = b""
            while chunk := s.recv(65536):
                got += chunk
            return got


HELLO = [{"role": "user", "content": "hello"}]


def refusal(s, path, body, param=None, status=400):
    got, reply = s.post(path, body)
    assert got == status, (got, reply)
    error = reply["error"]
    assert set(error) - {"n_prompt_tokens", "n_ctx"} == {"message", "type", "param", "code"}, error
    if param:
        assert error["param"] == param, error
    return error


def run_tests(begin=Server):
    """Runs the suite's tests, or those named on the command line, with what begin() gives to each; its exit status."""
    failed = 0
    only = sys.argv[1:]
    chosen = [t for t in TESTS if not only or t.__name__ in only]
    with begin() as given:
        for function in chosen:
            try:
                function(given)
                print("passed", function.__name__)
            except Exception as error:  # the others go on
                failed += 1
                print("failed", function.__name__, type(error).__name__, error)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0
