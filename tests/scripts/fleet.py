#!/usr/bin/env python3
"""A router before three servers, and 32 conversations: how much of their prompts is cached, and whether an answer is lost when one
server is drained and one is killed.

    python3 -m venv routers && routers/bin/pip install vllm-router     # 130 MB; or: sglang-router, in a folder of its own
    QUIPU_BINARY=build/quipu python3 tests/scripts/fleet.py vllm routers/bin     # or: sglang

Ends with status 1 if an answer was lost, or less than 0.7 of the prompts' tokens were cached.
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MODEL = Path(__file__).resolve().parents[1] / "golden" / "models" / "llama-text.gguf"
PORTS, ROUTER = (18301, 18302, 18303), 18310
CHECKS = ["--policy", "cache_aware", "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1",
          "--health-failure-threshold", "1", "--prometheus-port", "18311"]


def ask(port, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def wait_for(port, path):
    end = time.monotonic() + 60
    while True:
        try:
            return ask(port, path)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def is_there(port):
    try:
        return ask(port, "/v1/models")
    except OSError:
        return None


class Phase:
    """32 conversations of some turns, and what becomes of them."""

    def __init__(self, name, turns, pause=0.05, meanwhile=None):
        self.done = self.prompt = self.cached = 0
        self.lost, self.lock = [], threading.Lock()
        threads = [threading.Thread(target=self.talk, args=(i, turns, pause)) for i in range(32)]
        for thread in threads:
            thread.start()
        if meanwhile:
            time.sleep(0.6)
            meanwhile()
        for thread in threads:
            thread.join()
        self.share = self.cached / max(self.prompt, 1)
        print(f"{name}: {self.done} answers, {len(self.lost)} lost, {self.share:.3f} of the prompts cached", *self.lost[:2], flush=True)

    def talk(self, number, turns, pause):
        letters = random.Random(number)
        text = f"conversation {number}: " + "".join(letters.choice("abcdefgh ") for _ in range(100))
        for _ in range(turns):
            try:
                body = {"model": "m", "prompt": text, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
                reply = json.loads(ask(ROUTER, "/v1/completions", body))
                text += reply["choices"][0]["text"].encode("ascii", "replace").decode()
                with self.lock:
                    self.done += 1
                    self.prompt += reply["usage"]["prompt_tokens"]
                    self.cached += reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            except Exception as error:  # counted
                with self.lock:
                    self.lost.append(repr(error)[:200])
            time.sleep(pause)


def answers(port):
    return int(re.search(r'vllm:request_success_total\{[^}]*"length"\} (\d+)', ask(port, "/metrics").decode())[1])


def main():
    kind, programs = sys.argv[1], Path(sys.argv[2])
    servers = [subprocess.Popen([QUIPU, "serve", "-m", MODEL, "--port", str(port), "-t", "1", "--alias", "m", "--parallel", "16",
                                 "--drain-delay", "6"], stderr=subprocess.DEVNULL) for port in PORTS]
    for port in PORTS:
        wait_for(port, "/ready")
    command = [programs / "vllm-router"] if kind == "vllm" else [programs / "sglang-router", "launch"]
    urls = [f"http://127.0.0.1:{port}" for port in PORTS]
    with tempfile.TemporaryFile() as log:
        router = subprocess.Popen([*command, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(ROUTER), *CHECKS],
                                  stdout=log, stderr=log)
        try:
            while router.poll() is None and not is_there(ROUTER):
                time.sleep(0.1)
            if router.poll() is not None:
                log.seek(0)
                raise SystemExit("the router has ended: " + log.read().decode()[-2000:])
            phases = [Phase("three servers", 6), Phase("again", 6)]
            print("answers of each:", [answers(port) for port in PORTS])
            phases.append(Phase("one is drained", 14, 0.4, servers[0].terminate))
            assert servers[0].wait(60) == 0
            phases += [Phase("one is killed", 14, 0.3, servers[1].kill), Phase("one server", 6)]
        finally:
            router.terminate()
            router.wait(60)
            for server in servers:
                server.kill()
    return int(any(p.lost or p.share < 0.7 for p in phases))


if __name__ == "__main__":
    sys.exit(main())
