#!/usr/bin/env python3
"""What eight requests at a time that drive limits cost other clients of a server: delays.py [--seconds N] [KIND...]

For each kind of request a `quipu serve -t 1` is asked for four tokens again and again, first alone, then beside eight
processes that send requests of that kind as fast as they are answered. The table has both times, and how many such requests
there were. Times are only worth something on a machine that has nothing else to do.
"""
import argparse
import json
import multiprocessing
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from server_process import Server  # noqa: E402

ATTACKERS = 8
ENUMS = {f"p{i}": {"type": "array", "items": {"enum": [f"v{i}{j}" for j in range(40)]}} for i in range(60)}
TEXT = ("ab 'll\n\n  12345 " * 5000)[:60000]
USERS = [{"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(1501)]
TOOLS = [{"type": "function", "function": {"name": f"f{i}", "parameters": {
    "type": "object", "properties": {f"a{j}": {"type": "string", "pattern": "^[a-z]{0,50}$"} for j in range(8)}}}} for i in range(60)]
ASK = {"prompt": "the cat", "max_tokens": 4, "ignore_eos": True}
ONE = {"messages": USERS[:1], "max_tokens": 20}
SAMPLED = {"max_tokens": 64, "ignore_eos": True, "temperature": 1}
KINDS = {
    "a long word": ("/tokenize", {"content": "a" * 60000}),
    "a long text": ("/tokenize", {"content": TEXT}),
    "many messages": ("/v1/chat/completions", {"messages": USERS, "max_tokens": 1}),
    "a large body": ("/v1/completions", {"prompt": "a", "max_tokens": 1, "user": [0] * 30000}),
    "biases": ("/v1/completions", {"prompt": "a", "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(280)}}),
    "a schema": ("/v1/chat/completions", ONE | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": ENUMS, "required": list(ENUMS)}}}}),
    "a grammar": ("/v1/completions", ASK | {"grammar": 'root ::= ("a"|"b"|"aa"|"ab"){1,2000} | ([a-z]{0,500}){0,500}'}),
    "a pattern": ("/v1/completions", ASK | {"guided_regex": "([a-z]{0,100}[0-9]{0,100}){0,100}"}),
    "tools": ("/v1/chat/completions", ONE | {"tool_choice": "required", "tools": TOOLS}),
    "answers": ("/v1/completions", SAMPLED | {"prompt": [7] * 1500}),  # at no limit: what eight more rows in a pass cost
    "DRY": ("/v1/completions", SAMPLED | {"prompt": [7] * 1500, "dry_multiplier": 1, "dry_allowed_length": 1}),
    "samplers": ("/v1/completions", SAMPLED | {"prompt": "a", "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.2,
                                               "logprobs": 5}),
}


def ask(port, path, body):
    """Sends a request, and reads its reply without looking at it."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port)) as c:
        c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        while c.recv(1 << 20):
            pass


def attack(port, kind, count, stop):
    while not stop.is_set():
        try:
            ask(port, *KINDS[kind])
        except OSError:
            return
        with count.get_lock():
            count.value += 1


def times(port, seconds):
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        ask(port, "/v1/completions", ASK)
        found.append(1000 * (time.monotonic() - begin))
    found.sort()
    return found[len(found) // 2], found[int(0.99 * len(found))]


def measure(kind, seconds):
    with Server("-c", "2048", "--parallel", "16") as s:
        alone = times(s.port, seconds)
        stop, count = multiprocessing.Event(), multiprocessing.Value("i", 0)
        attackers = [multiprocessing.Process(target=attack, args=(s.port, kind, count, stop), daemon=True) for _ in range(ATTACKERS)]
        for process in attackers:
            process.start()
        beside = times(s.port, seconds)
        stop.set()
        for process in attackers:
            process.join(1)
            process.kill()
    print(f"{kind:16} alone p50 {alone[0]:6.1f} p99 {alone[1]:6.1f} ms, beside p50 {beside[0]:6.1f} p99 {beside[1]:6.1f} ms: "
          f"{beside[1] / alone[1]:4.1f} times; {count.value} such requests", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="delays.py", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options = parser.parse_args()
    for kind in options.kinds or KINDS:
        measure(kind, options.seconds)


if __name__ == "__main__":
    main()
