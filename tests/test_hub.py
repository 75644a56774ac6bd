#!/usr/bin/env python3
"""quipu pull, list and rm with a small hub whose faults the test chooses: redirects, broken
connections, wrong lengths and hashes, refusals. Ends with "N passed, N failed"."""
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MODELS = Path(__file__).resolve().parent / "golden" / "models"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = (MODELS / "llama-text.gguf").read_bytes()
DEFAULT = "SmolLM2-135M-Instruct.Q4_1.gguf"
LARGE = bytes(range(256)) * (40 << 12)  # 40 MiB: three pieces


class Hub(http.server.ThreadingHTTPServer):
    """What it has, and how it misbehaves."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"tiny-Q8_0.gguf": TINY, "large-Q4_K_M.gguf": LARGE,
                      "config.json": b"{}"}
        self.trouble = ""
        self.requests = []
        self.lock = threading.Lock()
        self.cut = 0  # answers that still break off half-way
        self.busy = 0  # answers that still are 429
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, name):
        with self.lock:
            left = getattr(self, name)
            setattr(self, name, max(left - 1, 0))
            return left > 0


def file_entry(name, data, trouble):
    entry = {"rfilename": name}
    if name.endswith(".gguf"):
        digest = hashlib.sha256(b"other" if trouble == "hash" else data).hexdigest()
        size = len(data) + (1000 if trouble == "short" else -1000 if trouble == "long" else 0)
        entry["lfs"] = {"sha256": digest, "size": size}
    else:
        entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry["size"] = len(data)
    return entry


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", headers=()):
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        hub = self.server
        hub.requests.append((self.path, self.headers.get("Authorization"),
                             self.headers.get("Range")))
        if self.path.startswith("/api/models/"):
            return self.answer_api()
        match = re.fullmatch(rf"/(?:cdn/)?o/m/resolve/{COMMIT}/(.+)", self.path)
        if not match or match[1] not in hub.files:
            return self.answer(404)
        if hub.trouble == "redirect" and not self.path.startswith("/cdn/"):
            return self.answer(302, headers=[("Location", "/cdn" + self.path)])
        if hub.trouble == "other host" and not self.path.startswith("/cdn/"):
            return self.answer(302, headers=[("Location", f"http://localhost:{hub.server_address[1]}/cdn" + self.path)])
        if hub.take("busy"):
            return self.answer(429, headers=[("Retry-After", "1")])
        return self.answer_file(hub.files[match[1]])

    def answer_api(self):
        hub = self.server
        if hub.trouble == "gated" and self.headers.get("Authorization") != "Bearer right":
            return self.answer(401)
        if not self.path.startswith("/api/models/o/m/"):
            return self.answer(404)
        if hub.trouble == "nonsense":
            return self.answer(200, b"<html>hello</html>")
        files = [file_entry(name, data, hub.trouble) for name, data in hub.files.items()]
        files.append({"rfilename": "../../escape.gguf", "blobId": "0" * 40, "size": 1})
        return self.answer(200, json.dumps({"sha": COMMIT, "siblings": files}).encode())

    def answer_file(self, data):
        hub = self.server
        begin, end, code = 0, len(data), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted and hub.trouble != "no ranges":
            begin, end, code = int(wanted[1]), min(int(wanted[2]) + 1, len(data)), 206
        part = data[begin:end]
        self.send_response(code)
        self.send_header("Content-Length", str(len(part)))
        if code == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.end_headers()
        if hub.trouble == "always cut" or hub.take("cut"):
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            self.connection.close()
            return
        try:
            self.wfile.write(part)
        except OSError:
            pass  # the client has seen enough


passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"failed: {name}: {detail}", file=sys.stderr)


class Place:
    """A cache folder and the hub that it belongs to."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.hub = Hub()

    def run(self, *words, **environment):
        variables = {"PATH": os.environ["PATH"], "HF_HOME": self.folder.name,
                     "HF_ENDPOINT": self.hub.url, "HOME": self.folder.name, **environment}
        done = subprocess.run([QUIPU, *words], capture_output=True, text=True, env=variables,
                              timeout=120, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def blobs(self):
        folder = Path(self.folder.name) / "hub" / "models--o--m" / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def whole(name, trouble="", reference="o/m:large-Q4_K_M.gguf", data=LARGE, **state):
    """A pull that must succeed, and leave exactly the file."""
    place = Place()
    place.hub.trouble = trouble
    for key, value in state.items():
        setattr(place.hub, key, value)
    code, out, err = place.run("pull", reference)
    path = out.strip()
    check(name, code == 0 and path and Path(path).read_bytes() == data, f"{code} {out} {err}")
    check(f"{name}: one blob, named by its hash",
          place.blobs() == [hashlib.sha256(data).hexdigest()], place.blobs())
    return place


def refused(name, trouble, expected, reference="o/m:tiny-Q8_0.gguf", code=1, **environment):
    """A pull that must fail with a sentence, and leave nothing that can be opened."""
    place = Place()
    place.hub.trouble = trouble
    got, out, err = place.run("pull", reference, **environment)
    check(name, got == code and expected in err and not out, f"{got} {out} {err}")
    snapshots = Path(place.folder.name) / "hub" / "models--o--m" / "snapshots"
    check(f"{name}: nothing to open", not snapshots.exists(), list(snapshots.rglob("*")))
    return place


def main():
    place = whole("a file by its name")
    ranges = {r for _, _, r in place.hub.requests if r}
    check("several ranges", len(ranges) >= 3, ranges)
    before = len(place.hub.requests)
    code, out, _ = place.run("pull", "o/m:large-Q4_K_M.gguf")
    check("what is there is not fetched again", code == 0 and len(place.hub.requests) == before + 1)
    whole("a file by its type", reference="o/m:q4_k_m")
    whole("the usual type", reference="o/m")
    whole("redirects", "redirect")
    whole("a server without ranges", "no ranges")
    whole("connections that break off", cut=4)
    whole("too many requests, once", busy=1)

    refused("a wrong hash", "hash", "expected the hash")
    refused("fewer bytes than announced", "short", "fewer than")
    refused("more bytes than announced", "long", "sent more than")
    refused("connections that always break off", "always cut", "")
    refused("no hub", "nonsense", "revision/main")
    refused("gated, without a token", "gated", "HF_TOKEN")
    refused("gated, with a wrong token", "gated", "the token was refused", HF_TOKEN="wrong")
    refused("missing", "", "does not exist", reference="o/other")
    refused("no such type", "", "large-Q4_K_M.gguf", reference="o/m:IQ2_XS", code=2)
    refused("no reference", "", "did you mean llama3.2:1b", reference="llama3.2:1c", code=2)
    refused("a path as a reference", "", "OWNER/NAME", reference="../../etc", code=2)
    refused("offline", "", "HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
    refused("an unreachable hub", "", "cannot be reached", HF_ENDPOINT="http://127.0.0.1:9")

    place = Place()
    place.hub.trouble = "gated"
    (Path(place.folder.name) / "token").write_text("right\n")
    code, out, err = place.run("pull", "o/m:tiny-Q8_0.gguf")
    check("a token from its file", code == 0, err)

    place = Place()
    place.hub.trouble = "other host"
    (Path(place.folder.name) / "token").write_text("right\n")
    code, out, err = place.run("pull", "o/m:tiny-Q8_0.gguf")
    sent = {path.startswith("/cdn/"): token for path, token, _ in place.hub.requests}
    check("the token goes to the hub only", code == 0 and sent == {False: "Bearer right", True: None}, f"{sent} {err}")

    # A broken fetch goes on where it stopped.
    place = Place()
    place.hub.cut = 40
    code, _, _ = place.run("pull", "o/m:large-Q4_K_M.gguf")
    place.hub.cut = 0
    place.hub.requests.clear()
    code2, out, err = place.run("pull", "o/m:large-Q4_K_M.gguf")
    check("resumed", code2 == 0 and Path(out.strip()).read_bytes() == LARGE, f"{code} {code2} {err}")

    # The commands that take models.
    place = Place()
    code, out, err = place.run("run", "-m", "hf:o/m:Q8_0", "-p", "the cat", "-n", "3", "--raw",
                               "--temp", "0", "--device", "cpu")
    check("run fetches", code == 0 and "fetching o/m:Q8_0" in err and out.strip(), f"{code} {err}")
    code, again, err = place.run("run", "-m", "hf:o/m:Q8_0", "-p", "the cat", "-n", "3", "--raw",
                                 "--temp", "0", "--device", "cpu", HF_HUB_OFFLINE="1")
    check("and then finds it offline", code == 0 and again == out, err)
    code, out, _ = place.run("list", "--json")
    listed = json.loads(out)
    check("list", code == 0 and [m["name"] for m in listed] == ["o/m:tiny-Q8_0.gguf"] and
          listed[0]["bytes"] == len(TINY), out)
    code, _, err = place.run("rm", "o/m:Q8_0")
    check("rm of a file", code == 0 and place.blobs() == [], f"{err} {place.blobs()}")
    place.run("pull", "o/m:Q8_0")
    code, _, err = place.run("rm", "o/m")
    check("rm of all", code == 0 and not (Path(place.folder.name) / "hub/models--o--m").exists(), err)
    code, _, err = place.run("rm", "o/m")
    check("rm of nothing", code == 1 and "is not in" in err, err)

    # The default model is not of the hub, and has a file of its own in quipu's cache.
    cache = Path(place.folder.name) / ".cache" / "quipu"
    cache.mkdir(parents=True)
    for name in DEFAULT, DEFAULT.replace(".gguf", ".generation_config.json"):
        (cache / name).write_text("x")
    code, out, _ = place.run("list")
    check("list names the default model", code == 0 and DEFAULT in out, out)
    code, _, err = place.run("rm", DEFAULT)
    check("rm of the default model", code == 0 and list(cache.iterdir()) == [], f"{err} {list(cache.iterdir())}")
    code, _, err = place.run("rm", DEFAULT)
    check("rm of a default model that is not there", code == 1 and "is not in the cache" in err, err)

    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
