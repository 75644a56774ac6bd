#!/usr/bin/env python3
"""quipu serve --models: three models of which two fit, many requests in random order, processes that are killed,
models that are unloaded, added and pulled, lists, refusals. Ends with "N passed, N failed"."""
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parent))
from server_process import MODEL, Server  # noqa: E402
from test_hub import Hub  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="quipu-test-models-"))
NAMES = ["one", "two", "three"]
OPTIONS = ("--parallel", "2", "-c", "128", "--drain", "20")
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Router(Server):
    """A quipu serve --models of its own, whose models are those of FOLDER."""

    def __init__(self, *arguments, models=FOLDER, keys=None):
        self.keys = keys or {}
        super().__init__(*OPTIONS, *arguments, model=None, models=models)

    def request(self, method, path, body=None, headers=None):
        return super().request(method, path, body, {**self.keys, **(headers or {})})


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)


def chat(s, name, text="hello", **more):
    return s.post("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "seed": 1, **more})


def needs(s, name="one"):
    """The planned bytes of a model, which are the same for all three."""
    assert chat(s, name)[0] == 200
    return s.get(f"/v1/models/{name}")[1]["status"]["memory"]


def running(s):
    return {m["name"]: m for m in s.get("/api/ps")[1]["models"]}


def kill(process):
    if process:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(process, signal.SIGKILL)


def process_of(s, name):
    """The process of a model, found among the children of the server."""
    for line in subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(s.process.pid)], capture_output=True, text=True).stdout.splitlines():
        pid, *words = line.split()
        if "--alias" in words and words[words.index("--alias") + 1] == name:
            return int(pid)
    return None


@test
def lists(s):
    status, listed = s.get("/v1/models")
    assert status == 200 and sorted(m["id"] for m in listed["data"]) == sorted(NAMES), listed
    assert {m["status"]["value"] for m in listed["data"]} <= {"unloaded", "loading", "loaded", "unloading"}
    assert sorted(m["name"] for m in s.get("/api/tags")[1]["models"]) == sorted(NAMES)
    assert s.get("/v1/models/two")[1]["id"] == "two"
    assert s.get("/health") == (200, {"status": "ok"})


@test
def answers_by_name(s):
    for name in NAMES:
        status, reply = chat(s, name)
        assert status == 200 and reply["model"] == name, reply
        assert chat(s, name + ":latest")[0] == 200
    assert s.get("/props?model=two")[1]["model_alias"] == "two"
    assert s.get("/props")[0] == 200  # of the one used last


@test
def refusals(s):
    status, reply = chat(s, "four")
    assert status == 404 and reply["error"]["code"] == "model_not_found" and "one" in reply["error"]["message"], reply
    assert s.post("/v1/chat/completions", {"messages": []})[0] == 400
    assert s.post("/api/chat", {"model": "four"})[0] == 404
    for path in ("/api/create", "/api/copy", "/api/push"):
        status, reply = s.post(path, {"model": "one"})
        assert status == 501 and "not made" in reply["error"], reply
    status, _, reply = s.request("DELETE", "/api/delete", {"model": "one"})
    assert status == 400 and (FOLDER / "one.gguf").exists(), reply
    assert s.post("/api/chat", {"model": "one", "keep_alive": "soon"})[0] == 400
    assert s.post("/v1/chat/completions", b"{\"model\": \"one\"")[0] == 400
    assert s.get("/nothing")[0] == 404


def stream_text(s, name):
    events = s.stream("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "seed": 1})
    assert events[-1] == "[DONE]", events
    return "".join((e["choices"][0]["delta"].get("content") or "") for e in events[:-1] if e["choices"])


def ollama_text(s, name):
    status, reply = s.post("/api/chat", {"model": name, "messages": [{"role": "user", "content": "hello"}], "stream": False,
                                         "options": {"num_predict": 4, "seed": 1}})
    assert status == 200, reply
    return reply["message"]["content"]


@test
def same_bytes(s):
    """What comes through is what a process says by itself."""
    with Server(*OPTIONS) as alone:
        body = {"model": "one", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 3, "temperature": 0}
        own, passed = alone.post("/v1/chat/completions", body)[1], s.post("/v1/chat/completions", body)[1]
        assert own["choices"] == passed["choices"] and own["usage"] == passed["usage"], (own, passed)
        for path in ("/tokenize", "/detokenize"):
            request = {"model": "one", "content": "a b é", "tokens": [5, 6, 7]}
            own, passed = alone.post(path, request), s.post(path, request)
            assert own == passed, (own, passed)
        _, reply, _ = s.request("POST", "/v1/chat/completions", {**body, "temperature": -1}, {"X-Request-Id": "mine"})
        assert reply.status == 400 and reply.getheader("X-Request-Id") == "mine", (reply.status, reply.headers)


@test
def many_in_random_order(s):
    """Two of three fit: none of 200 requests is lost, the plan is kept to, a killed process is started again."""
    chance, over, killed = random.Random(7), [], []
    done = threading.Event()

    def watch():
        while not done.is_set():
            models = running(s)
            over.extend([models] if sum(m["size"] for m in models.values()) > MEMORY else [])
            time.sleep(0.01)

    def ask(i):
        name, kind = NAMES[chance.randrange(3)], i % 3
        if i in (60, 120):
            killed.append(process_of(s, name))
            kill(killed[-1])
        if kind == 0:
            status, reply = chat(s, name)
            assert status == 200 and reply["model"] == name, (status, reply)
        elif kind == 1:
            ollama_text(s, name)
        else:
            try:
                stream_text(s, name)
            except (AssertionError, KeyError) as error:  # only one that was under way in a killed process
                assert any(killed) and "ended within the answer" in str(error), error

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(200)))
    finally:
        done.set()
        watcher.join()
    assert not over, over[0]
    assert len(running(s)) <= 2


@test
def packages_of_clients(s):
    """The openai and ollama packages, where this Python has them: 200 requests in random order, lists, keep_alive, what is refused."""
    try:
        import ollama
        import openai
    except ImportError as error:
        print("skipped: packages of clients:", error)
        return
    one = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)
    other = ollama.Client(host=f"http://127.0.0.1:{s.port}")
    chance, hello = random.Random(11), [{"role": "user", "content": "hello"}]
    assert sorted(m.id for m in one.models.list()) == sorted(m.model for m in other.list().models) == sorted(NAMES)

    def ask(i):
        name = NAMES[chance.randrange(3)]
        if i % 4 == 0:
            assert one.chat.completions.create(model=name, messages=hello, max_tokens=4).usage.completion_tokens > 0
        elif i % 4 == 1:
            assert list(one.chat.completions.create(model=name, messages=hello, max_tokens=4, stream=True))[-1].choices[0].finish_reason
        elif i % 4 == 2:
            assert other.chat(model=name, messages=hello, options={"num_predict": 4}).done
        else:
            assert list(other.generate(model=name, prompt="x", options={"num_predict": 4}, stream=True, keep_alive="5m"))[-1].done

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(200)))
    assert other.generate(model="one", keep_alive=0).done_reason == "unload"
    wait_for(lambda: "one" not in {m.model for m in other.ps().models})
    for refused in (lambda: other.create(model="new", from_="one"), lambda: other.copy("one", "new"), lambda: other.delete("one"),
                    lambda: other.pull("../x"), lambda: other.show("four")):
        try:
            refused()
            raise AssertionError("it was not refused")
        except ollama.ResponseError as error:
            assert error.status_code >= 400 and error.error, error


@test
def killed_while_idle(s):
    chat(s, "one")
    before = process_of(s, "one")
    kill(before)
    assert chat(s, "one")[0] == 200 and process_of(s, "one") != before


@test
def killed_within_an_answer(s):
    """A whole reply is asked for again, and a stream says that it was cut."""
    wait = {"ignore_eos": True, "max_tokens": 100}
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(chat, s, "one", **wait)
        wait_for(lambda: process_of(s, "one"))
        kill(process_of(s, "one"))
        status, reply = whole.result()
        assert status == 200 and reply["usage"]["completion_tokens"] > 0, reply


@test
def keep_alive(s):
    """Ollama's: for ever, for a while, and not at all."""
    s.post("/api/generate", {"model": "one"})
    assert running(s)["one"]["expires_at"].startswith("9999"), running(s)
    s.post("/api/generate", {"model": "one", "keep_alive": "10m"})
    assert not running(s)["one"]["expires_at"].startswith("9999"), running(s)
    status, reply = s.post("/api/generate", {"model": "one", "keep_alive": 0})
    assert status == 200 and reply["done_reason"] == "unload", reply
    wait_for(lambda: "one" not in running(s))
    assert ollama_text(s, "one") is not None
    s.post("/api/chat", {"model": "one", "messages": [{"role": "user", "content": "x"}], "keep_alive": 0, "stream": False, "options": {"num_predict": 2}})
    wait_for(lambda: "one" not in running(s))


@test
def a_client_leaves(s):
    """Its answer ends, and the model can be ended for another."""
    chat(s, "two")
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        body = json.dumps({"model": "two", "messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True, "max_tokens": 110}).encode()
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert c.recv(100).startswith(b"HTTP/1.1 200")
    for name in ("one", "three", "two"):
        assert chat(s, name)[0] == 200


@test
def a_new_model(s):
    shutil.copy(MODEL, FOLDER / "four.gguf")
    assert chat(s, "four")[0] == 200
    (FOLDER / "four.gguf").unlink()
    assert sorted(m["id"] for m in s.get("/v1/models")[1]["data"]) == sorted(NAMES)
    (FOLDER / "broken.gguf").write_bytes(b"GGUF, but no more")
    status, reply = chat(s, "broken")
    (FOLDER / "broken.gguf").unlink()
    assert status == 503 and "was not loaded" in reply["error"]["message"], reply


@test
def too_large(s):
    with Router("--models-memory", "200K") as small:
        status, reply = chat(small, "one")
        assert status == 503 and "--models-memory" in reply["error"]["message"], reply


@test
def a_list_in_a_file(s):
    file = FOLDER / "list.txt"
    file.write_text(f"# models\nshort {MODEL} --context 64\nlong {MODEL}\n")
    with Router(models=file) as r:
        assert r.get("/props?model=short")[1]["default_generation_settings"]["n_ctx"] == 64
        assert r.get("/props?model=long")[1]["default_generation_settings"]["n_ctx"] == 128
        assert r.post("/api/pull", {"model": "a/b"})[0] == 400
    file.write_text("only-a-name\n")
    said = subprocess.run([os.environ.get("QUIPU_BINARY", "build/quipu"), "serve", "--models", str(file)], capture_output=True, text=True)
    file.unlink()
    assert said.returncode and "list.txt:1: expected a name" in said.stderr, said


@test
def pulled_and_deleted(s):
    """A model of a hub comes into the folder, answers, and goes."""
    folder = Path(tempfile.mkdtemp(prefix="quipu-test-pulled-"))
    os.environ["HF_ENDPOINT"] = Hub().url
    with Router(models=folder) as r:
        status, said = r.post("/api/pull", {"model": "o/m:tiny-Q8_0.gguf"})
        lines = [json.loads(line) for line in said.splitlines()]
        assert status == 200 and lines[0]["status"] == "pulling manifest" and lines[-1]["status"] == "success", lines
        name = r.get("/api/tags")[1]["models"][0]["name"]
        assert chat(r, name)[0] == 200
        status, reply = r.post("/api/pull", {"model": "o/m:missing.gguf", "stream": False})
        assert status == 500 and "missing.gguf" in reply["error"], reply
        assert r.request("DELETE", "/api/delete", {"model": name})[0] == 200
        assert r.get("/api/tags")[1]["models"] == []
    del os.environ["HF_ENDPOINT"]
    shutil.rmtree(folder)


@test
def keys(s):
    """Keys are checked before models are listed or started, and by the processes."""
    file = FOLDER / "keys"
    file.write_text("first\n")
    with Router("--api-key-file", str(file), keys={"Authorization": "Bearer first"}) as r:
        assert chat(r, "one")[0] == 200
        assert chat(r, "one", **{})[0] == 200
        bare = Server.request(r, "POST", "/v1/chat/completions", {"model": "two"})
        assert bare[0] == 401 and process_of(r, "two") is None, bare
        file.write_text("second\n")
        r.process.send_signal(signal.SIGHUP)
        r.keys = {"Authorization": "Bearer second"}
        wait_for(lambda: chat(r, "one")[0] == 200)
    file.unlink()


@test
def never_ready(_):
    """A process that hangs while it loads, here on a hub that is silent, is killed; what waits is told, others load meanwhile."""
    file = FOLDER / "list.txt"
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(4) as pool:
        file.write_text(f"hangs hf:o/m:x.gguf\nshort {MODEL}\n")
        os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Router("--load-timeout", "3", models=file) as s:
            waiting = [pool.submit(chat, s, "hangs") for _ in range(3)]
            wait_for(lambda: process_of(s, "hangs"))
            os.kill(process_of(s, "hangs"), signal.SIGSTOP)  # nor does it end by itself
            child = process_of(s, "hangs")
            wait_for(lambda: chat(s, "short")[0] == 200)
            for w in waiting:
                status, reply = w.result()
                assert status == 503 and "--load-timeout" in reply["error"]["message"], reply
            wait_for(lambda: not Path(f"/proc/{child}").exists())
            assert s.get("/v1/models/hangs")[1]["status"]["value"] == "unloaded"
        del os.environ["HF_ENDPOINT"]
    file.unlink()


@test
def dies_at_each_point(s):
    """Killed before it has counted, while it waits, while it loads, while it answers, while it ends: requests are answered."""
    chance = random.Random(5)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(12):
            s.post("/models/unload", {"model": "one"})
            waiting = [pool.submit(chat, s, "one", max_tokens=30) for _ in range(3)]
            wait_for(lambda: process_of(s, "one"))
            time.sleep(chance.random() * 0.1)
            kill(process_of(s, "one"))
            assert all(w.result()[0] == 200 for w in waiting), [w.result() for w in waiting]


@test
def a_request_that_kills(s):
    """It is asked again some times, not for ever."""
    done = threading.Event()

    def kill_all():
        while not done.is_set():
            if running(s).get("one", {}).get("status") == "loaded" and (child := process_of(s, "one")):
                kill(child)
                wait_for(lambda: process_of(s, "one") != child)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        status, reply = chat(s, "one", max_tokens=100, ignore_eos=True, n=100)
        for _ in range(10):  # one that was quicker
            if status != 200:
                break
            status, reply = chat(s, "one", max_tokens=100, ignore_eos=True, n=100)
    finally:
        done.set()
        killer.join()
    assert status == 502 and "ended" in reply["error"]["message"], (status, reply)
    assert chat(s, "one")[0] == 200


@test
def many_while_it_loads(s):
    s.post("/models/unload", {"model": "one"})
    wait_for(lambda: process_of(s, "one") is None)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: chat(s, "one"), range(20)))
    assert all(a[0] == 200 and a[1]["model"] == "one" for a in answers), answers
    assert len({a[1]["choices"][0]["message"]["content"] for a in answers}) == 1, answers


@test
def clients_hang_up_while_it_loads(s):
    """Their requests are forgotten; one that stays is answered."""
    s.post("/models/unload", {"model": "two"})
    wait_for(lambda: process_of(s, "two") is None)
    body = json.dumps({"model": "two", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 100}).encode()
    clients = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(10)]
    for c in clients:
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    with ThreadPoolExecutor(1) as pool:
        stays = pool.submit(chat, s, "two")
        for c in clients:
            c.close()
        assert stays.result()[0] == 200


@test
def unloaded_while_it_loads(s):
    """Requests that wait are answered, then it ends."""
    s.post("/models/unload", {"model": "one"})
    wait_for(lambda: process_of(s, "one") is None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(chat, s, "one")
        wait_for(lambda: process_of(s, "one"))
        assert s.post("/models/unload", {"model": "one"}) == (200, {"success": True})
        assert waiting.result()[0] == 200
    wait_for(lambda: process_of(s, "one") is None)


@test
def forms_of_keep_alive(s):
    def kept(value):
        status, reply = s.post("/api/generate", {"model": "one", "keep_alive": value})
        assert status == 200 and json.loads(reply)["done_reason"] == "load", (value, reply)
        return running(s)["one"]["expires_at"]

    for value in (-1, "-1", "-1m", "-1h30m", 1e12):
        assert kept(value).startswith("9999"), value
    for value, seconds in (("5m", 300), ("1h30m", 5400), (90, 90), ("90", 90), ("1.5h", 5400), ("120000ms", 120)):
        left = datetime.fromisoformat(kept(value)).timestamp() - time.time()
        assert seconds - 60 < left <= seconds + 2, (value, left)
    for value in ("soon", "5 m", "m", "", "-", "nan", "inf", "0x10", "5m!", True, [], {}, "1" * 70):
        status, reply = s.post("/api/generate", {"model": "one", "keep_alive": value})
        assert status == 400 and "keep_alive" in reply["error"], (value, reply)
    for value in (0, "0", "0s", 0.0):
        status, reply = s.post("/api/chat", {"model": "one", "messages": [], "keep_alive": value})
        assert status == 200 and reply["done_reason"] == "unload" and reply["message"]["content"] == "", (value, reply)
        wait_for(lambda: "one" not in running(s))
    # A model that is asked something answers first, and not only by the names of chats.
    for path, body in (("/api/embed", {"input": "x"}), ("/api/embeddings", {"prompt": "x"}), ("/api/generate", {"prompt": "x", "stream": False})):
        status, reply = s.post(path, {"model": "one", "keep_alive": 0, **body})
        assert status == 200 and ("embeddings" in reply or "embedding" in reply or reply["done_reason"] != "unload"), (path, reply)
        wait_for(lambda: "one" not in running(s))
    assert s.post("/api/generate", {"model": "four", "keep_alive": 0})[0] == 404


@test
def odd_names(_):
    """Names are those of files, whatever these are, but for what no text in JSON can hold."""
    folder = Path(tempfile.mkdtemp(prefix="quipu-test-odd-"))
    names = ["a b", "ü", "-x", "--port", "100%", "a?b#c", "q\"'", "\\", "$(touch x)", "x" * 200, "a:b", "a=b", ".hidden", "..", " ", "latest"]
    for name in names:
        shutil.copy(MODEL, folder / (name + ".gguf"))
    for name in (b"bad\xff.gguf", b"line\n.gguf", b"tab\t.gguf"):
        shutil.copy(MODEL, os.path.join(os.fsencode(folder), name))
    os.mkfifo(folder / "pipe.gguf")
    (folder / "folder.gguf").mkdir()
    (folder / "loop.gguf").symlink_to(folder / "loop.gguf")
    (folder / "gone.gguf").symlink_to(folder / "nothing")
    (folder / "linked.gguf").symlink_to(MODEL)
    (folder / "a b").mkdir()
    (folder / "a b" / "config.json").write_text("{}")  # a folder of the name that a file has
    (folder / "x-00002-of-00002.gguf").write_text("")
    expected = sorted([*(n for n in names if not n.startswith(".")), "linked"])
    with Router(models=folder) as r:
        assert sorted(m["id"] for m in r.get("/v1/models")[1]["data"]) == expected, r.get("/v1/models")
        assert sorted(m["name"] for m in r.get("/api/tags")[1]["models"]) == expected
        for name in expected:
            status, reply = chat(r, name)
            assert status == 200 and reply["model"] == name, (name, reply)
            status, reply = r.get("/v1/models/" + quote(name, safe=""))
            assert status == 200 and reply["id"] == name, (name, reply)
            status, reply = r.get("/props?model=" + quote(name, safe=""))
            assert status == 200 and reply["model_alias"] == name, (name, reply)
            r.post("/models/unload", {"model": name})
        for name in ("../one", "/etc/passwd", "pipe", "folder", "loop", "gone", "bad\udcff", "line\n", "", "x" * 5000, None, 5, ["one"]):
            status, reply = chat(r, name)
            assert status in (400, 404), (name, status, reply)
    shutil.rmtree(folder)


@test
def the_folder_changes(_):
    """A file that is replaced is loaded anew, one that is gone is not answered for any more, and a folder that is gone loses nothing."""
    folder = Path(tempfile.mkdtemp(prefix="quipu-test-changes-"))
    shutil.copy(MODEL, folder / "one.gguf")
    with Router(models=folder) as r:
        assert chat(r, "one")[0] == 200
        before = process_of(r, "one")
        shutil.copy(MODEL, folder / "new")
        os.utime(folder / "new", (1e9, 1e9))
        os.rename(folder / "new", folder / "one.gguf")
        assert r.get("/v1/models")[0] == 200  # which reads the folder
        assert chat(r, "one")[0] == 200 and process_of(r, "one") != before
        (folder / "one.gguf").unlink()
        assert r.get("/v1/models")[1]["data"] == []
        assert chat(r, "one")[0] == 404
        wait_for(lambda: process_of(r, "one") is None)
        assert r.get("/api/ps")[1]["models"] == []
        shutil.rmtree(folder)
        assert r.get("/v1/models")[0] == 200 and r.get("/health")[0] == 200
        folder.mkdir()
        shutil.copy(MODEL, folder / "two.gguf")
        assert chat(r, "two")[0] == 200
        file = folder / "two.gguf"
        file.write_bytes(MODEL.read_bytes()[:5000])  # cut: it is refused, and the list is as before
        r.get("/v1/models")
        assert chat(r, "two")[0] == 503
        file.unlink()
        assert chat(r, "two")[0] == 404
    shutil.rmtree(folder)


@test
def pulls_are_few(_):
    """Four at a time, here from a hub that is silent; the server ends all the same."""
    folder = Path(tempfile.mkdtemp(prefix="quipu-test-pulls-"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Router(models=folder) as r:
            clients = [socket.create_connection(("127.0.0.1", r.port), timeout=60) for _ in range(4)]
            for c in clients:
                c.sendall(b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: 26\r\n\r\n" + b'{"model": "o/m:tiny.gguf"}')
                said = b""
                while b"pulling manifest" not in said and b"error" not in said:
                    said += c.recv(4096)
            status, reply = r.post("/api/pull", {"model": "o/m:other.gguf"})
            assert status == 429 and "try again later" in reply["error"], (status, reply)
            for c in clients:
                c.close()
        del os.environ["HF_ENDPOINT"]
    shutil.rmtree(folder)


@test
def pulls_at_once(_):
    """Two of one model, one whose client leaves, names that are none; and a model that answers is deleted."""
    folder = Path(tempfile.mkdtemp(prefix="quipu-test-pulls-"))
    os.environ["HF_ENDPOINT"] = Hub().url
    with Router(models=folder) as r, ThreadPoolExecutor(3) as pool:
        pulls = [pool.submit(r.post, "/api/pull", {"model": "o/m:tiny-Q8_0.gguf", "stream": False}) for _ in range(2)]
        with socket.create_connection(("127.0.0.1", r.port)) as c:
            c.sendall(b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: 32\r\n\r\n" + b'{"model": "o/m:tiny-Q8_0.gguf"} ')
        results = [p.result() for p in pulls]
        assert any(status == 200 for status, _ in results), results
        assert all(status == 200 or "error" in reply for status, reply in results), results
        for name in ("../../x", "/etc/passwd", "", "o", "o/m:../x.gguf", "o/m:x/../../y.gguf", "a" * 3000, "o/\n", 7):
            status, reply = r.post("/api/pull", {"model": name, "stream": False})
            assert status in (400, 500) and reply["error"], (name, status, reply)
        name = r.get("/api/tags")[1]["models"][0]["name"]
        asked = pool.submit(chat, r, name, max_tokens=60, ignore_eos=True)
        wait_for(lambda: running(r).get(name, {}).get("status") == "loaded")
        assert r.request("DELETE", "/api/delete", {"model": name})[0] == 200
        assert asked.result()[0] == 200, asked.result()
        assert r.request("DELETE", "/api/delete", {"model": name})[0] == 404
        assert chat(r, name)[0] == 404
    del os.environ["HF_ENDPOINT"]
    shutil.rmtree(folder)


@test
def ends_with_its_processes(s):
    with Router() as r:
        chat(r, "one"), chat(r, "two")
        children = [process_of(r, name) for name in ("one", "two")]
        assert all(children)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    r = Router()
    chat(r, "one")
    child = process_of(r, "one")
    r.process.kill()
    wait_for(lambda: not Path(f"/proc/{child}").exists())


def main():
    global MEMORY
    for name in NAMES:
        shutil.copy(MODEL, FOLDER / (name + ".gguf"))
    with Router() as r:
        MEMORY = int(2.5 * needs(r))
    failed, only = 0, sys.argv[1:]
    chosen = [t for t in TESTS if not only or t.__name__ in only]
    try:
        with Router("--models-memory", str(MEMORY)) as s:
            for function in chosen:
                try:
                    function(s)
                    print("passed", function.__name__, flush=True)
                except Exception as error:  # the others go on
                    failed += 1
                    print("failed", function.__name__, type(error).__name__, str(error)[:800], flush=True)
    finally:
        shutil.rmtree(FOLDER)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
