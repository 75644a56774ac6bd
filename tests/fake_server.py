"""A server that speaks just enough of OpenAI's API for the tests of `quipu load` and of the server's page,
and misbehaves as the model's name asks: "plain", "slow", "refuse", "cut", "silent", ... Its figures are
known. It can hand out the files of a folder and the state of an engine too."""
import asyncio
import json
import re
import threading
import time
from pathlib import Path

FIRST_MS, GAP_MS = 60, 15  # of the model "slow"


def event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def policy(page):
    """The header by which src/server/page.c forbids what is not the page's own."""
    text = page.with_suffix(".c").read_text().split("policy[] =", 1)[1].split(";\n", 1)[0]
    return "".join(re.findall(r'"([^"]*)"', text))


def libraries(page):
    """The name in addresses, the package and the file of each library that the page takes."""
    return [row.split() for row in (page / "libraries.txt").read_text().splitlines() if row[0] != "#"]


class FakeServer:
    def __init__(self, model="plain", folder=None, engine=None):
        self.model, self.folder, self.engine = model, folder, engine
        self.requests = []  # (seconds, path, headers, body)
        self.defaults = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1, "seed": 0}
        self.connections = 0
        self.running = self.most_running = 0
        self.first_ms = FIRST_MS
        self.held = False  # answers wait before their first token
        self.key = None  # without it, /props is refused
        self.models = None  # those of /v1/models, if there are several
        self.thoughts, self.script = [], []  # of the model "script": what comes, one piece an event
        self.loading = 0  # so many requests of /props find the model not yet loaded
        self.pictures, self.idle = {}, 0  # {path: (type, bytes)}; refused for the first `idle` times
        self.started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True).start()
        self.started.wait()

    async def serve(self):
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, limit=1 << 26)
        self.port = server.sockets[0].getsockname()[1]
        self.started.set()
        await server.serve_forever()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def connection(self, reader, writer):
        self.connections += 1
        try:
            while await self.request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def request(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("Content-Length", 0)))
        if method == "GET":
            self.get(writer, path, headers)
            return True
        body = json.loads(body)
        self.requests.append((time.monotonic(), path, headers, body))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await self.answer(writer, path, headers, body)
        finally:
            self.running -= 1

    @staticmethod
    def reply(writer, status, value, kind="application/json", headers=""):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        writer.write(b"HTTP/1.1 %d X\r\n%sContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" %
                     (status, headers.encode(), kind.encode(), len(text), text))

    def page_file(self, path):
        """A file of the server's page: its own, or of the libraries that it takes."""
        if path in ("/", "/index.html"):
            return self.folder / "page.html"
        taken = {"/page/" + name: Path(file) for name, _, file in libraries(self.folder)}
        return taken.get(path, self.folder / path.removeprefix("/page/"))

    def get(self, writer, path, headers):
        kinds = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".woff2": "font/woff2"}
        if path == "/v1/models":
            self.reply(writer, 200, {"data": [{"id": model, "meta": {"n_vocab": 1000}} for model in self.models or [self.model]]})
        elif path == "/props" and self.key and headers.get("Authorization") != "Bearer " + self.key:
            self.reply(writer, 401, {"error": {"message": "the request has no valid API key"}})
        elif path == "/props" and self.loading:
            self.loading -= 1
            self.reply(writer, 503, {"error": {"message": "the model is being loaded"}})
        elif path.split("?")[0] == "/props":
            self.reply(writer, 200, {"default_generation_settings": {"params": self.defaults}})
        elif path in self.pictures:
            kind, text = self.pictures[path]
            self.idle -= 1
            refusal = {"error": {"message": "no pass has ended within a second"}}
            self.reply(writer, 503, refusal) if self.idle >= 0 else self.reply(writer, 200, text, kind)
        elif path == "/engine" and self.engine:
            self.reply(writer, 200, self.engine)
        elif self.folder and self.page_file(path).suffix in kinds and self.page_file(path).exists():
            file = self.page_file(path)
            self.reply(writer, 200, file.read_bytes(), kinds[file.suffix], policy(self.folder) + "\r\n")
        else:
            self.reply(writer, 404, {"error": {"message": "there is no " + path}})

    async def answer(self, writer, path, headers, body):
        mode, n = body["model"], body.get("max_tokens", 6)
        if mode == "refuse" or (mode == "key" and headers.get("Authorization") != "Bearer secret"):
            self.reply(writer, 429, {"error": {"message": "the queue is full"}})
            return True
        if mode == "half" and len(self.requests) % 2:
            self.reply(writer, 503, {"error": {"message": "loading"}})
            return True
        if mode == "close":
            return False
        if mode == "silent":
            await asyncio.sleep(30)
            return False
        if mode == "not http":
            writer.write(b"220 mail ready\r\n\r\n")
            return False
        if mode == "no stream":
            self.reply(writer, 200, {"choices": [{"text": "x"}]})
            return True
        close = mode == "to the end"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" +
                     (b"Connection: close\r\n\r\n" if close else b"Transfer-Encoding: chunked\r\n\r\n"))
        write = writer.write if close else lambda data: writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.events(writer, write, mode, n, path, body)
        if mode in ("cut", "events then close"):
            return False
        if not close:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not close and mode != "closes when idle"

    async def events(self, writer, write, mode, n, path, body):
        chat = path.endswith("/chat/completions")
        if chat:
            write(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        if body.get("return_progress"):
            write(event({"choices": [{"delta": {}}], "prompt_progress": {"total": 17, "cache": 2, "processed": 9, "time_ms": 1}}))
        if mode.startswith("slow"):
            await asyncio.sleep(self.first_ms / 1000)
        while self.held:
            await asyncio.sleep(0.01)
        while mode == "endless":
            write(event({"choices": [{"text": "x", "delta": {"content": "x"}}]}) * 100)
            await writer.drain()
        for piece in self.thoughts if "script" in mode else []:
            write(event({"choices": [{"delta": {"reasoning_content": piece}, "finish_reason": None}]}))
        for i in range(len(self.script) if "script" in mode else n):
            if mode.startswith("slow") and i:
                await asyncio.sleep(GAP_MS / 1000)
            piece = self.script[i] if "script" in mode else " x"
            choice = {"delta": {"content": piece}} if chat else {"text": piece}
            write(event({"choices": [{**choice, "finish_reason": None}]}))
            await writer.drain()
            if mode == "cut" and i == 2:
                return
            if mode == "nonsense" and i == 1:
                write(event(b"{\"choices\": ["))
            if mode == "error" and i == 1:
                write(event({"error": {"message": "pages ran out"}}))
        if mode == "no end":
            return
        write(event({"choices": [{"delta": {}, "text": "", "finish_reason": "length"}]}))
        if mode != "no usage" and body.get("stream_options", {}).get("include_usage"):
            n_prompt = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 17
            write(event({"choices": [], "usage": {"prompt_tokens": n_prompt, "completion_tokens": n,
                                                  "prompt_tokens_details": {"cached_tokens": 2}}}))
        write(event(b"[DONE]"))
