#!/usr/bin/env python3
"""Commands that write files are killed at random moments, or find that a file cannot grow: what is there then is the old
file, the whole new one, or nothing, and the next run leaves nothing else. QUIPU_KILLS says how often; the seed is printed."""
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from cli_process import HOME, MODEL, MODELS, QUIPU, TEMPORARY, check, run_parts
from test_hub import LARGE, Place

KILLS = int(os.environ.get("QUIPU_KILLS", "8"))
SEED = int(os.environ.get("QUIPU_SEED", time.time_ns() % 1000000))
random.seed(SEED)


class Job:
    """A command with what it reads, and a folder that it writes into."""

    def __init__(self, name, *command, stdin="", environment=None):
        self.folder = Path(TEMPORARY, name)
        self.folder.mkdir()
        self.command = [QUIPU, *(word.replace("FOLDER", str(self.folder)) for word in command)]
        self.stdin, self.environment = stdin.replace("FOLDER", str(self.folder)), HOME | (environment or {})

    def run(self, kill_after=None, bytes_most=None):
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_most, bytes_most))) if bytes_most else None
        child = subprocess.Popen(self.command, cwd=MODELS, env=self.environment, stdin=subprocess.PIPE, text=True, errors="replace",
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit)
        try:
            out, err = child.communicate(self.stdin, timeout=kill_after or 120)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        return child.returncode, out, err

    def files(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())


def attack(job, is_sound, most_bytes):
    """Kills the job at random moments of its whole time, then lets it end; is_sound() judges what it leaves."""
    begin = time.monotonic()
    status, answer, err = job.run()
    took = time.monotonic() - begin
    check(status == 0, f"{job.command}: {err}")
    expected = job.files()
    check(expected, f"{job.command} writes no file")
    for n in range(KILLS):
        for path in expected:  # now and then something is there before
            if random.random() < 0.7:
                (job.folder / path).unlink(missing_ok=True)
        if n % 2:
            status, _, err = job.run(kill_after=random.uniform(0, 1.2 * took))
        else:
            status, _, err = job.run(bytes_most=random.randrange(1, most_bytes))
        said = is_sound()
        check(said is None, f"seed {SEED}, kill {n} of {job.command}: {said}: {err}")
    status, again, err = job.run()
    check(status == 0 and again == answer, f"seed {SEED}: {job.command} after kills: {err}")
    check(job.files() == expected, f"seed {SEED}: {job.command} leaves {job.files()}, expected {expected}")
    check(is_sound() is None, f"seed {SEED}: {job.command}: {is_sound()}")


def whole(path, content):
    """None if a file is absent or has the content."""
    if path.exists() and path.read_bytes() != content:
        return f"{path} has {path.stat().st_size} bytes, not those expected"
    return None


def convert():
    job = Job("convert", "convert", "-m", "synthetic:tiny", "-o", "FOLDER/made.gguf", "--type", "F16")
    job.run()
    content = (job.folder / "made.gguf").read_bytes()
    attack(job, lambda: whole(job.folder / "made.gguf", content), len(content))


def answers_of(job, expected):
    """Judges whether the job still answers so."""
    def judge():
        status, out, err = job.run()
        return None if (status, out) == (0, expected) else f"another answer: {out!r}, {err}"
    return judge


def conversation_at(path):
    def judge():
        try:
            return None if not path.exists() or len(json.loads(path.read_text())) >= 2 else "too short"
        except ValueError as why:
            return str(why)
    return judge


def cache():
    words = ["-m", MODEL, "-p", "one two three", "-n", "4", "--temp", "0"]
    job = Job("cache", "run", *words, "--cache-packed", "FOLDER")
    attack(job, answers_of(job, Job("none", "run", *words).run()[1]), 1 << 17)


def pull():
    place = Place()
    place.hub.handle_error = lambda *_: None  # of connections that a kill broke
    job = Job("pull", "pull", "o/m:large-Q4_K_M.gguf", environment={
        "HF_HUB_CACHE": str(Path(TEMPORARY, "pull")), "HF_ENDPOINT": place.hub.url})

    def blobs_are_whole():
        names = [path for path in job.folder.rglob("*.gguf")]
        return next((said for said in (whole(path, LARGE) for path in names) if said), None)
    attack(job, blobs_are_whole, len(LARGE))


def save():
    job = Job("save", "chat", "-m", MODEL, "-n", "3", "--temp", "0", stdin="hello\n/save FOLDER/kept.json\n")
    attack(job, conversation_at(job.folder / "kept.json"), 400)


if __name__ == "__main__":
    sys.exit(run_parts(convert, cache, pull, save))
