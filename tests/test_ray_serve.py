#!/usr/bin/env python3
"""The lines of doc/FLEET.md that make the Python package a replica of Ray Serve: answers, streams, a client that leaves, a
replica that is killed. QUIPU_RAY_PYTHON names a Python that has ray[serve], numpy and cffi; without it and without ray the
suite is skipped. Ends with "N passed, N failed"."""
import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WITH_RAY = os.environ.pop("QUIPU_RAY_PYTHON", None)
if WITH_RAY:
    os.execv(WITH_RAY, [WITH_RAY, __file__, *sys.argv[1:]])
if not importlib.util.find_spec("ray"):
    print("skipped: this Python has no ray[serve]; QUIPU_RAY_PYTHON can name one that has it")
    sys.exit(77)

LIBRARY = os.environ.setdefault("QUIPU_LIBRARY", str(ROOT / "build" / "libquipu.so"))
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
import ray  # noqa: E402
from ray import serve  # noqa: E402
from server_process import MODEL, run_tests, test  # noqa: E402

VARIABLES = {"QUIPU_LIBRARY": LIBRARY, "QUIPU_MODEL": str(MODEL), "PYTHONPATH": str(ROOT / "python"),
             "QUIPU_RUN": f"{os.getpid()}-{time.time()}"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def replicas():
    """The document's deployment, three times; its port."""
    code = re.search("```python\n(.*?class Chat:.*?)```", (ROOT / "doc" / "FLEET.md").read_text(), re.S)[1]
    os.environ.update(VARIABLES)
    sys.path.insert(0, VARIABLES["PYTHONPATH"])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": VARIABLES})
    try:
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        names = {"__name__": "__main__"}
        exec(code, names)
        serve.run(names["Chat"].options(num_replicas=3).bind())
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


def chat(port, text, **more):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/", json.dumps({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **more}))
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


@test
def conversations(port):
    """The same question has the same answer, whichever replica it is."""
    questions = [f"question {i % 6}" for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda q: chat(port, q), questions))
    assert all(status == 200 and text for status, text in answers), answers
    assert all(answers[i] == answers[i % 6] for i in range(24)), answers
    import quipu
    with quipu.Model(str(MODEL)) as model:
        assert answers[0][1] == model.chat([{"role": "user", "content": questions[0]}], temperature=0, max_tokens=8).text()


@test
def a_client_leaves(port):
    with socket.create_connection(("127.0.0.1", port)) as c:
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 100}).encode()
        c.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert c.recv(20).startswith(b"HTTP/1.1 200")
    assert chat(port, "hello")[0] == 200


@test
def a_replica_is_killed(port):
    """Ray starts another one; questions are answered all the time, or asked again after a broken connection."""
    def processes():
        """Replicas of this run."""
        found = set()
        for p in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"ServeReplica" in (p / "cmdline").read_bytes() and f"QUIPU_RUN={VARIABLES['QUIPU_RUN']}".encode() in (p / "environ").read_bytes():
                    found.add(int(p.name))
        return found
    before = processes()
    assert len(before) == 3, before
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    answered, end = 0, time.monotonic() + 120
    while answered < 30 or len(processes() - {victim}) < 3:
        assert time.monotonic() < end, "no third replica comes"
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            answered += chat(port, f"again {answered}")[0] == 200


sys.exit(run_tests(begin=replicas))
