#!/usr/bin/env python3
"""quipu serve under clients that behave badly: they leave at any time, send garbage, read slowly, ask for
more than there is room for. Nothing may get stuck, no page may be lost, memory stays flat, and an answer is
afterwards what it was before. Ends with "N passed, N failed". The environment sets

    QUIPU_SOAK_REQUESTS   the number of requests (`./dev soak`)
    QUIPU_SOAK_SECONDS    after how long it ends with fewer
    QUIPU_SOAK_SEED       their order
    QUIPU_SOAK_PROCESSES  the number of processes that the clients are spread over
    QUIPU_SOAK_OPTIONS    more options of the server, such as "-t 2"
    QUIPU_SOAK_WITHOUT    kinds of requests that are left out: without "formed chats", whose forms keep masks,
                          malloc() has given out the same at rest after any number of requests

malloc() keeps some freed memory for each thread and counts it as given out, so the server runs without that:
then what it counts at rest shows each leak."""
import asyncio
import collections
import json
import multiprocessing
import os
import re
import shlex
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MODEL = Path(__file__).resolve().parent / "golden" / "models" / "llama-text.gguf"
REQUESTS = int(os.environ.get("QUIPU_SOAK_REQUESTS", "200"))
SEED = int(os.environ.get("QUIPU_SOAK_SEED", "1"))
LIMIT = float(os.environ.get("QUIPU_SOAK_SECONDS", "inf"))
PROCESSES = int(os.environ.get("QUIPU_SOAK_PROCESSES", "1"))
OPTIONS = shlex.split(os.environ.get("QUIPU_SOAK_OPTIONS", ""))
CLIENTS, SECONDS, CONTEXT, SLOTS = 24, 120, 512, 4
SANITIZED = "san" in QUIPU
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson if tools else '' }}"
            "{% if enable_thinking is not false %}<think>{% endif %}{# </think> #}")
passed = failed = 0


def check(name, ok, told=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {told}")


class Server:
    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [QUIPU, "serve", "-m", str(MODEL), "--device", "cpu", "--port", str(self.port), "--parallel", str(SLOTS),
             "-c", str(CONTEXT), "--chat-template", TEMPLATE, "--store-size", "64K", *OPTIONS], stdout=subprocess.DEVNULL,
            env=dict(os.environ, GLIBC_TUNABLES="glibc.malloc.tcache_count=0"))

    def resident(self):
        """Bytes of memory that the process has in RAM."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Client:
    """Requests by hand over one connection each, so that they can be broken anywhere."""

    def __init__(self, port, chance):
        self.port, self.chance = port, chance

    @staticmethod
    def head(path, length, method="POST"):
        return (f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Connection: close\r\nContent-Length: {length}\r\n\r\n").encode()

    async def exchange(self, data, pause=None, leave_after=None):
        """Sends bytes and reads to the end: (status, body). `pause`: seconds between small reads;
        `leave_after`: bytes after which the connection is dropped."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4096)
        answer = b""
        try:
            writer.write(data)
            await writer.drain()
            while leave_after is None or len(answer) < leave_after:
                more = await reader.read(256 if pause else 65536)
                if not more:
                    break
                answer += more
                if pause:
                    await asyncio.sleep(pause)
        except ConnectionError:
            pass
        finally:
            if leave_after is not None:
                writer.transport.abort()
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/1.") else 0
        if b"transfer-encoding: chunked" in head.lower():
            body = self.joined(body)
        return status, body

    @staticmethod
    def joined(body):
        """The chunks of a body as one."""
        out = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            if not size or not int(size.split(b";")[0], 16):
                break
            out, body = out + rest[:int(size, 16)], rest[int(size, 16) + 2:]
        return out

    async def post(self, path, value, **how):
        body = json.dumps(value).encode()
        return await self.exchange(self.head(path, len(body)) + body, **how)

    async def get(self, path):
        status, body = await self.exchange(self.head(path, 0, "GET"))
        return status, json.loads(body)

    def question(self, **more):
        """A prompt that shares its beginning with others."""
        c = self.chance
        prompt = "Once upon a time there was " + " and ".join(c.choice(["a cat", "a dog", "the sea"]) for _ in range(c.randrange(8)))
        return {"prompt": prompt, "max_tokens": c.randrange(1, 40), "temperature": c.choice([0, 0.8]),
                "seed": c.randrange(1000), "ignore_eos": True, **more}

    # Each returns a complaint, or None. A full queue (429) is a good answer to all of them.

    async def whole(self):
        status, body = await self.post("/v1/completions", self.question())
        if status == 429:
            return None
        usage = json.loads(body).get("usage", {})
        return None if status == 200 and usage.get("completion_tokens", 0) > 0 else f"{status} {body[:200]}"

    async def streamed(self, pause=None):
        status, body = await self.post("/v1/completions", self.question(stream=True), pause=pause)
        good = status == 429 or (status == 200 and body.endswith(b"data: [DONE]\n\n"))
        return None if good else f"{status} ...{body[-200:]}"

    async def slow(self):
        return await self.streamed(pause=0.002)

    async def several(self):
        status, body = await self.post("/v1/completions", self.question(n=3))
        return None if status == 429 or len(json.loads(body).get("choices", [])) == 3 else f"{status} {body[:200]}"

    async def reads(self):
        """A stream that says how much of its prompt is read."""
        c = self.chance
        status, body = await self.post("/completion", {"prompt": self.question()["prompt"] * c.randrange(1, 4), "n_predict": 5, "ignore_eos": True,
                                                       "stream": True, "return_progress": True})
        good = status == 429 or (status == 200 and b"prompt_progress" in body and b'"stop":true' in body)
        return None if good else f"{status} ...{body[-200:]}"

    def schema(self):
        """One of three."""
        n = self.chance.randrange(3)
        return {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3 + n}, "age": {"type": "integer", "minimum": n}},
                "required": ["name", "age"]}

    async def formed(self):
        """An answer that has to follow a schema or a grammar."""
        c = self.chance
        form = c.choice([{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": self.schema()}}},
                         {"grammar": 'root ::= "yes" | "no" [a-z]{1,3}'}])
        status, body = await self.post("/v1/completions", {"prompt": "Once", "max_tokens": 60, "temperature": 1, "seed": c.randrange(1000), **form})
        if status == 429:
            return None
        choice = json.loads(body).get("choices", [{}])[0]
        text, ended = choice.get("text", ""), choice.get("finish_reason") == "stop"
        good = status == 200 and (not ended or ("grammar" in form and re.fullmatch("yes|no[a-z]{1,3}", text)) or
                                  ("response_format" in form and set(json.loads(text)) == {"name", "age"}))
        return None if good else f"{status} {body[:200]}"

    async def chats(self):
        """The other ways to talk with the model, with tools or without."""
        c = self.chance
        messages = [{"role": "user", "content": self.question()["prompt"]}]
        tools = c.choice([{}, {"tools": [{"type": "function", "function": {"name": "look", "parameters": self.schema()}}]}])
        path, body, end = c.choice([
            ("/v1/chat/completions", {"messages": messages, "max_tokens": 10, **tools}, b"data: [DONE]"),
            ("/v1/messages", {"messages": messages, "max_tokens": 10}, b"message_stop"),
            ("/v1/responses", {"input": messages, "max_output_tokens": 16}, b"response."),
            ("/api/chat", {"messages": messages, "options": {"num_predict": 10}}, b'"done":true')])
        stream = c.choice([True, False])
        status, answer = await self.post(path, {"model": "any", **body, "stream": stream})
        good = status == 429 or (status == 200 and (end in answer if stream else json.loads(answer)))
        return None if good else f"{path}: {status} ...{answer[-200:]}"

    async def thinks(self):
        """Thoughts with a budget, before text or a call that is forced."""
        c = self.chance
        messages = [{"role": "user", "content": self.question()["prompt"]}]
        tool, budget, stream = c.choice([False, True]), c.choice([0, 1, 7, 30]), c.choice([True, False])
        path, body = c.choice([
            ("/v1/chat/completions", {"messages": messages, "max_tokens": 150, "thinking_budget": budget} | (
                {"tools": [{"type": "function", "function": {"name": "look", "parameters": self.schema()}}], "tool_choice": "required"} if tool else {})),
            ("/v1/messages", {"messages": messages, "max_tokens": 150, "thinking_budget": budget} | (
                {"tools": [{"name": "look", "input_schema": self.schema()}], "tool_choice": {"type": "any"}} if tool else {})),
            ("/v1/responses", {"input": messages, "max_output_tokens": 150, "reasoning": {"max_tokens": budget}, "store": c.choice([True, False])} | (
                {"tools": [{"type": "function", "name": "look", "parameters": self.schema()}], "tool_choice": "required"} if tool else {}))])
        status, answer = await self.post(path, {**body, "temperature": 1, "seed": c.randrange(1000), "stream": stream}, pause=c.choice([None, None, 0.002]))
        cut = b'"length"' in answer or b"max_tokens" in answer or b"incomplete" in answer
        good = status == 429 or (status == 200 and (not tool or cut or b'"look"' in answer))
        return None if good else f"{path}: {status} ...{answer[-200:]}"

    async def counts(self):
        """What needs no pass of the model."""
        prompt = self.question()["prompt"]
        status, body = await self.post("/tokenize", {"content": prompt})
        tokens = json.loads(body).get("tokens")
        status, body = await self.post("/detokenize", {"tokens": tokens})
        return None if status == 200 and json.loads(body).get("content", "").strip() == prompt.strip() else f"{status} {body[:200]}"

    async def embeds(self):
        n = self.chance.randrange(1, 6)
        status, body = await self.post("/v1/embeddings", {"input": [self.question()["prompt"] for _ in range(n)]})
        return None if status == 429 or len(json.loads(body).get("data", [])) == n else f"{status} {body[:200]}"

    async def leaves(self):
        await self.post("/v1/completions", self.question(stream=self.chance.random() < 0.7, max_tokens=200),
                        leave_after=self.chance.choice([0, 0, 1, 200, 500, 2000]))

    async def leaves_soon(self):
        """In the middle of the request."""
        body = json.dumps(self.question()).encode()
        data = self.head("/v1/completions", len(body)) + body
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data[:self.chance.randrange(len(data))])
        await asyncio.sleep(self.chance.random() * 0.05)
        writer.transport.abort()

    async def long(self):
        """Nearly all of the context, or more than it has."""
        n = self.chance.choice([CONTEXT - 20, CONTEXT - 2, CONTEXT + 1, 4 * CONTEXT])
        status, body = await self.post("/v1/completions", {"prompt": [3 + self.chance.randrange(200) for _ in range(n)], "max_tokens": 10,
                                                           "ignore_eos": True})
        return None if status in ((400,) if n >= CONTEXT else (200, 400, 429)) else f"{n}: {status} {body[:200]}"

    async def garbage(self):
        c = self.chance
        rows = [b"\0" * 100, bytes(c.randrange(256) for _ in range(200)), b"GET", b"POST /v1/completions HTTP/9.9\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10000 + b"\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                self.head("/v1/completions", -1), self.head("/v1/completions", 10 ** 18) + b"{",
                b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
        data = c.choice(rows)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            writer.write_eof()
            answer = await reader.read(65536)
        except ConnectionError:
            return None
        finally:
            writer.close()
        good = not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505"))
        return None if good else f"{data[:60]!r}: {answer[:100]!r}"

    async def wrong(self):
        """Bodies that are refused with 4xx."""
        c = self.chance
        bodies = [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 5000, b'{"prompt": 1}', b'{"prompt": {}}', b'{"prompt": "a", "max_tokens": "x"}',
                  b'{"prompt": "a", "temperature": -1}', b'{"prompt": "a", "n": 1000000}', b'{"prompt": [1e9]}', b'{"prompt": [-1]}',
                  b'{"prompt": "a", "stop": 1}', b'{"prompt": "a", "logit_bias": {"x": 1}}', b'{"prompt": "\\ud800"}', b'{"max_tokens": 1}',
                  b'{"prompt": []}']
        body = c.choice(bodies)
        path = c.choice(["/v1/completions", "/v1/chat/completions"])
        status, answer = await self.exchange(self.head(path, len(body)) + body)
        return None if 400 <= status < 500 else f"{path} {body[:60]!r}: {status} {answer[:200]}"

    async def others(self):
        path = self.chance.choice(["/health", "/v1/models", "/metrics", "/nothing", "/slots", "/engine", "/"])
        status, body = await self.exchange(self.head(path, 0, "GET"))
        return None if status in (200, 404) else f"{path}: {status} {body[:200]}"


KINDS = {"whole": 6, "streamed": 8, "slow": 2, "several": 2, "reads": 3, "embeds": 2, "leaves": 8, "leaves_soon": 4, "long": 3, "garbage": 3, "wrong": 6, "others": 2,
         "formed": 2, "chats": 4, "thinks": 4, "counts": 1}
for left_out in os.environ.get("QUIPU_SOAK_WITHOUT", "").split():
    del KINDS[left_out]


async def worker(port, number, numbers, end, complaints, done):
    chance = random.Random(SEED * 1000 + number)
    client = Client(port, chance)
    for _ in numbers:
        if time.monotonic() > end:
            return
        kind = chance.choices(list(KINDS), KINDS.values())[0]
        try:
            complaint = await asyncio.wait_for(getattr(client, kind)(), SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            complaint = f"stuck for {SECONDS} s"
        except Exception as error:  # what a client met is a finding, whatever it is
            complaint = repr(error)
        done[kind] += 1
        if complaint:
            complaints[kind].append(complaint)


def clients(port, n, end, process, results):
    """A process with its share of the clients and n requests."""
    async def together():
        numbers, complaints, done = iter(range(n)), collections.defaultdict(list), collections.Counter()
        await asyncio.gather(*(worker(port, i, numbers, end, complaints, done) for i in range(process, CLIENTS, PROCESSES)))
        results.put((dict(complaints), done))
    asyncio.run(together())


def soak(port, n, seconds):
    """Up to n requests; how many there were."""
    end = time.monotonic() + seconds
    complaints, done = collections.defaultdict(list), collections.Counter()
    several = multiprocessing.get_context("fork")
    results = several.Queue()
    processes = [several.Process(target=clients, args=(port, n * (i + 1) // PROCESSES - n * i // PROCESSES, end, i, results))
                 for i in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        theirs, counted = results.get()
        done += counted
        for kind, some in theirs.items():
            complaints[kind] += some
    for process in processes:
        process.join()
    for kind in sorted(done):
        check(f"{kind}, {done[kind]} times", not complaints[kind], f"{len(complaints[kind])}: {complaints[kind][:3]}")
    return sum(done.values())


async def ready(client):
    for _ in range(600):
        try:
            if (await client.exchange(client.head("/health", 0, "GET")))[0] == 200:
                return True
        except OSError:
            pass
        await asyncio.sleep(0.1)
    return False


async def at_rest(client):
    """The engine's state once no request is left; the last one seen if that never comes."""
    state = {}
    for _ in range(100):
        _, state = await client.get("/engine")
        queue = state.get("queue", {})
        if not queue.get("running") and not queue.get("waiting") and not state.get("pages", {}).get("used"):
            return True, state
        await asyncio.sleep(0.1)
    return False, state


async def heap(client):
    """Bytes that malloc() has given out; 0: the system does not say."""
    _, body = await client.exchange(client.head("/metrics", 0, "GET"))
    return int(float(re.search(rb"^quipu:heap_bytes\{.*\} (.*)$", body, re.M)[1]))


async def main(server):
    client = Client(server.port, random.Random(SEED))
    check("ready", await ready(client))
    question = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    before = json.loads((await client.post("/v1/completions", question))[1])["choices"][0]
    made = soak(server.port, REQUESTS // 3, LIMIT / 3)
    _, state = await at_rest(client)
    resident, files, held = server.resident(), server.open_files(), await heap(client)
    made += soak(server.port, REQUESTS - REQUESTS // 3, LIMIT * 2 / 3)
    rested, state = await at_rest(client)
    check("no request is stuck and no page is lost", rested, state.get("queue", state))
    after = json.loads((await client.post("/v1/completions", question))[1])["choices"][0]
    check("the same answer as before", after == before, f"{before} {after}")
    grown, leaked = server.resident() - resident, await heap(client) - held
    print(f"{made} requests, then {state.get('pages', {}).get('used')} pages in use; resident memory {resident >> 10} KiB "
          f"after a third of them, {resident + grown >> 10} KiB at the end; of malloc() {held} bytes, then {held + leaked}")
    check("flat memory", grown < (200 << 20 if SANITIZED else 24 << 20), f"{grown >> 20} MiB more than {resident >> 20} MiB")
    # Buffers grow to what the longest answers need, and the masks of forms are kept as answers reach them.
    check("no leak", leaked < 1 << 20, f"{leaked} bytes more than {held}")
    check("no file is left open", server.open_files() <= files + 2, f"{server.open_files()} after {files}")
    server.process.send_signal(signal.SIGTERM)
    check("ends on SIGTERM", server.process.wait(30) == 0, server.process.returncode)


def run():
    server = Server()
    begin = time.monotonic()
    try:
        asyncio.run(main(server))
    except Exception as error:
        check("soak", False, repr(error))
    finally:
        if server.process.poll() is None:
            server.process.kill()
    print(f"{time.monotonic() - begin:.1f} s\n{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(run())
