#!/usr/bin/env python3
"""Power loss: what commands write is recorded, and each moment is replayed as a disk may have it then. Names change in
their order; bytes that were not synchronised are there, are missing, or are zeros. What is under a name then is the old
file, the whole new one, or nothing that is taken for whole; and the next run ends as the first one did."""
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from cli_process import MODEL, MODELS, TEMPORARY, check, run_parts
from test_hub import TINY, Place
from test_killed import Job, answers_of, conversation_at, whole

SEED = int(os.environ.get("QUIPU_SEED", time.time_ns() % 1000000))
RUNS = int(os.environ.get("QUIPU_LOSSES", "3"))  # states of each job from which it is run again
random.seed(SEED)
CALLS = "open,openat,creat,lseek,write,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,link,linkat," \
        "symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,copy_file_range,sendfile,writev,pwritev,pwritev2,mmap"
LINE = re.compile(r"([\d.]+) (\w+)\((.*)\) += (-?\d+)")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def unhex(text):
    return bytes.fromhex(text.replace("\\x", ""))


def record(job):
    """The system calls of a run of the job that write, in their order: [(name, arguments, strings, result)]."""
    trace = Path(TEMPORARY, "trace")
    shutil.rmtree(trace, ignore_errors=True)
    trace.mkdir()
    command = job.command
    # LeakSanitizer cannot work in a program that is traced.
    job.environment["ASAN_OPTIONS"] = "detect_leaks=0"
    job.command = ["strace", "-ff", "-ttt", "-y", "-xx", "-s", "1000000", "-e", "trace=" + CALLS, "-o", str(trace / "t"), *command]
    status, answer, err = job.run()
    job.command = command
    check(status == 0, f"{command}: {err}")
    lines = [line for path in trace.iterdir() for line in path.read_text(errors="replace").splitlines()]
    calls = []
    for match in sorted(filter(None, map(LINE.match, lines)), key=lambda match: float(match[1])):
        if int(match[4]) >= 0:
            calls.append((match[2], match[3], [unhex(found) for found in STRING.findall(match[3])], int(match[4])))
    return calls, answer


class Disk:
    """Files and names of a folder: inodes are {"data", "safe"}, what was written, and what is on the disk for certain."""

    def __init__(self, folder):
        self.folder, self.names, self.folders = os.fsencode(folder), {}, set()
        self.open = {}  # descriptor -> [inode, position]

    def inside(self, path):
        return path.startswith(self.folder + b"/")

    def apply(self, name, arguments, strings, result):
        """Does what a call did; whether something changed."""
        paths = [path for path in strings if self.inside(path)] if not name.startswith(("write", "pwrite")) else []
        # A descriptor may have been closed since, and be a socket now: strace says what it is.
        match = re.match(r"(\d+)<((?:\\x[0-9a-f]{2})*)>", arguments)
        file = self.open.get(int(match[1])) if match and self.inside(unhex(match[2])) else None
        if name in ("open", "openat", "creat"):
            self.open.pop(result, None)
            if not paths or "O_DIRECTORY" in arguments or paths[0] in self.folders:
                return False
            if paths[0] not in self.names and "O_CREAT" not in arguments:
                return False  # of a link
            inode = self.names.setdefault(paths[0], {"data": b"", "safe": b""})
            if "O_TRUNC" in arguments:
                inode["data"] = b""
            self.open[result] = [inode, 0]
        elif name == "lseek" and file:
            file[1] = result
            return False
        elif name in ("write", "pwrite64") and file:
            at = int(arguments.rsplit(", ", 1)[1]) if name == "pwrite64" else file[1]
            data, new = file[0]["data"].ljust(at, b"\0"), strings[-1][:result]
            file[0]["data"] = data[:at] + new + data[at + len(new):]
            file[1] = file[1] if name == "pwrite64" else at + len(new)
        elif name in ("fsync", "fdatasync") and file:
            file[0]["safe"] = file[0]["data"]
        elif name == "ftruncate" and file:
            size = int(arguments.rsplit(", ", 1)[1])
            file[0]["data"] = file[0]["data"][:size].ljust(size, b"\0")
        elif name == "fallocate" and file:
            size = sum(map(int, arguments.rsplit(", ", 2)[1:]))
            if "KEEP_SIZE" not in arguments:
                file[0]["data"] = file[0]["data"].ljust(size, b"\0")
        elif name.startswith("rename") and paths:
            self.names[paths[1]] = self.names.pop(paths[0])
        elif name.startswith("symlink") and paths:
            self.names[paths[-1]] = {"link": strings[0]}
        elif name.startswith("unlink") and paths:
            self.names.pop(paths[0], None)
        elif name.startswith("mkdir") and paths:
            self.folders.add(paths[0])
        elif file and name not in ("mmap",) or (paths and name != "mmap"):
            check(False, f"this test does not know the call {name}({arguments[:200]})")
        elif name == "mmap" and file and "MAP_SHARED" in arguments and "PROT_WRITE" in arguments:
            check(False, "this test does not know what is written through mapped memory")
        else:
            return False
        return True

    def put(self, lost):
        """Makes the folder as the disk has it: with bytes that are not safe "kept", "missing" or "zeros"."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        for folder in sorted(self.folders):
            os.makedirs(folder, exist_ok=True)
        for path, inode in self.names.items():
            if "link" in inode:
                os.symlink(inode["link"], path)
                continue
            safe, data = inode["safe"], inode["data"]
            rest = {"kept": data, "missing": safe, "zeros": safe[:len(data)].ljust(len(data), b"\0")}[lost]
            Path(os.fsdecode(path)).write_bytes(rest)


def lose_power(job, is_sound, states_judged=10**9):
    """Replays every moment of a first run and of one that finds the files of the first."""
    calls, answer = record(job)
    expected, states = job.files(), []
    check(expected, f"{job.command} writes no file")
    disk = Disk(job.folder)
    for n, call in enumerate(calls):
        if disk.apply(*call):
            states.append(n)
    check(len(states) > 2, f"{job.command}: {len(states)} calls were seen")
    judged = sorted(random.sample(states, min(len(states), states_judged)))
    again = set(random.sample(judged, min(len(judged), RUNS)))
    disk = Disk(job.folder)
    for n, call in enumerate(calls):
        disk.apply(*call)
        if n not in judged:
            continue
        for lost in ("kept", "missing", "zeros"):
            disk.put(lost)
            said = is_sound()
            check(said is None, f"seed {SEED}: power lost after call {n} of {job.command}, bytes {lost}: {said}")
            if n in again:
                status, out, err = job.run()
                check((status, out) == (0, answer), f"seed {SEED}: {job.command} after power was lost at {n}, bytes {lost}: {err}")
                check(is_sound() is None and job.files() == expected,
                      f"seed {SEED}: {job.command} after power was lost at {n}, bytes {lost}: {is_sound()}, {job.files()}")


def convert():
    job = Job("convert", "convert", "-m", "synthetic:tiny", "-o", "FOLDER/made.gguf", "--type", "Q4_0")
    job.run()
    content = (job.folder / "made.gguf").read_bytes()
    (job.folder / "made.gguf").unlink()
    lose_power(job, lambda: whole(job.folder / "made.gguf", content), 40)


def packed():
    words = ["-m", MODEL, "-p", "one two three", "-n", "4", "--temp", "0"]
    job = Job("packed", "run", *words, "--cache-packed", "FOLDER")
    lose_power(job, answers_of(job, Job("none", "run", *words).run()[1]), 6)


def pull():
    place = Place()
    place.hub.handle_error = lambda *_: None
    job = Job("pull", "pull", "o/m:tiny-Q8_0.gguf", environment={
        "HF_HUB_CACHE": str(Path(TEMPORARY, "pull")), "HF_ENDPOINT": place.hub.url})

    def is_sound():
        return next((said for said in (whole(path, TINY) for path in job.folder.rglob("*.gguf")) if said), None)
    lose_power(job, is_sound, 60)


def save():
    job = Job("save", "chat", "-m", MODEL, "-n", "3", "--temp", "0", stdin="hello\n/save FOLDER/kept.json\n")
    lose_power(job, conversation_at(job.folder / "kept.json"))


if not shutil.which("strace"):
    print("skipped: there is no strace")
    sys.exit(77)
if subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False).returncode != 0:
    print("skipped: this system lets no process trace another")
    sys.exit(77)
sys.exit(run_parts(convert, packed, pull, save))
