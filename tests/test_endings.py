#!/usr/bin/env python3
"""Every wait ends: commands whose other side hangs (a hub, a server, a program, standard input), or that compute for long,
end after SIGINT and SIGTERM, and when the reader of their output is gone. How long each took is printed; a command is only
judged to hang after a minute, because a loaded machine is slow too."""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cli_process import HERE, HOME, MODEL, MODELS, QUIPU, SLOW, TEMPORARY, check, run_parts

LONG, QUICK = 60, 2
HANG_DISK = Path(QUIPU).resolve().parent / "tests/libhang_disk.so"
FAKE_CUDA = Path(QUIPU).resolve().parent / "tests/fake_cuda"


class Peer:
    """Accepts connections, reads requests, and answers with nothing, or with a byte now and then."""

    def __init__(self, drips):
        self.drips, self.asked = drips, threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def serve(self):
        while True:
            connection = self.socket.accept()[0]
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        try:
            connection.recv(9999)
            self.asked.set()
            if self.drips:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while True:
                if self.drips:
                    connection.sendall(b" ")
                time.sleep(0.2)
        except OSError:
            pass


def start(*command, environment=None, **more):
    return subprocess.Popen([QUIPU, *command], cwd=MODELS, env=HOME | (environment or {}), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def ends(name, child, what):
    begin = time.monotonic()
    what(child)
    try:
        child.wait(LONG)
    except subprocess.TimeoutExpired:
        child.kill()
        check(False, f"{name} goes on for {LONG} s")
    took = time.monotonic() - begin
    if took > QUICK:
        print(f"slow: {name} took {took:.1f} s")
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe:
            pipe.close()


def for_signals(name, begin):
    for number in (signal.SIGINT, signal.SIGTERM):
        child = begin()
        ends(f"{name}, {number.name}", child, lambda child: child.send_signal(number))
        check(child.returncode != 0, f"{name} after {number.name}: status 0")


def waits_for_peers():
    for drips in (False, True):
        def pull():
            peer = Peer(drips)
            child = start("pull", "a/b", environment={"HF_ENDPOINT": peer.url, "HF_HUB_CACHE": TEMPORARY + "/hub"})
            check(peer.asked.wait(LONG), "the hub is asked")
            return child

        def load():
            peer = Peer(drips)
            child = start("load", "--url", peer.url, "--model", "m", "-n", "1")
            check(peer.asked.wait(LONG), "the server is asked")
            return child
        for_signals(f"pull, {drips}", pull)
        for_signals(f"load, {drips}", load)


def waits_for_programs():
    started = Path(TEMPORARY, "started")
    kernel = Path(TEMPORARY, "spin.c")
    kernel.write_text('#include "quipu_kernel.h"\nvoid rms_norm_kernel(const op_call *call)\n'
                      '{\n    (void)call;\n    for (;;)\n        __asm__ volatile("");\n}\n')

    def improve():
        started.unlink(missing_ok=True)
        child = start("ops", "improve", "rms_norm", "--command", f"touch {started}; sleep 4712", "-o",
                      TEMPORARY + f"/out{time.monotonic_ns()}")
        while not started.exists():
            time.sleep(0.01)
        return child

    def check_kernel():
        child = start("ops", "check", "rms_norm", "--kernel", str(kernel), "--timeout", "600")
        time.sleep(0.5)  # wherever it is then: compiling, or in the kernel
        return child
    for_signals("ops improve", improve)
    for_signals("ops check", check_kernel)


def waits_for_input():
    for command in (["chat", "-m", MODEL], ["run", "-m", MODEL, "-n", "2"], ["tokenize", "-m", MODEL]):
        def begin():
            child = start(*command)
            time.sleep(0.3)
            return child
        for_signals(command[0], begin)


def wait_in_open(child):
    """Until the process is in open() and stays there, where the system says so."""
    before, end = "", time.monotonic() + LONG
    while time.monotonic() < end:
        try:
            now = Path(f"/proc/{child.pid}/syscall").read_text()
        except OSError:
            time.sleep(0.5)
            return
        if now == before and now.split()[0] in ("2", "56", "257"):  # open and openat of x86-64 and aarch64
            return
        before = now
        time.sleep(0.02)
    check(False, f"{child.args} does not open its pipe")


def waits_for_disks():
    """A pipe that nobody opens at its other end: the system call that opens it never returns."""
    pipe = Path(TEMPORARY, "pipe")
    os.mkfifo(pipe)
    run = ("run", "-m", MODEL, "-n", "1")
    for command in ([*run, "-f", pipe], [*run, "-p", "a", "--json-schema", pipe], [*run, "-p", "a", "--grammar", pipe],
                    ["serve", "-m", MODEL, "--port", "0", "--api-key-file", pipe], ["trace", "-m", MODEL, "-p", "a", "-n", "1", "-o", pipe],
                    ["schedule", "-m", MODEL, "--save", pipe]):
        def begin():
            child = start(*command)
            child.stdin.close()
            wait_in_open(child)
            return child
        for_signals(" ".join(map(str, command)), begin)
    for command in (["run", "-m", pipe, "-p", "a"], ["plan", "-m", pipe], ["tokenize", "-m", pipe], ["schedule", "-m", MODEL, "--load", pipe],
                    ["convert", "-m", MODEL, "-o", pipe]):
        child = start(*command)
        try:
            err = child.communicate(b"", LONG)[1]
            check(child.returncode != 0 and b"expected a" in err, f"{command}: {err}")
        except subprocess.TimeoutExpired:
            child.kill()
            check(False, f"{command} waits for a pipe")


def hangs_on_disk(function, folder, stdin, *command):
    """Whether the command calls the function for a file in the folder, which does not return; then it ends after a signal."""
    begun = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        child = start(*command, environment={"LD_PRELOAD": str(HANG_DISK), "QUIPU_HANGS": function, "QUIPU_HANGS_BELOW": str(folder)})
        child.stdin.write(stdin)
        child.stdin.close()
        line = b"..."
        while line and b"the disk hangs" not in line and b": ready" not in line:
            line = child.stderr.readline()
        reached = b"the disk hangs" in line
        if reached:
            begun += 1
            ends(f"{command[0]}, {function}, {number.name}", child, lambda child: child.send_signal(number))
            check(child.returncode != 0, f"{command}, {function}, after {number.name}: status 0")
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            pipe.close()
        if not reached:
            break
    return begun


def waits_for_hanging_disks():
    """Every function that opens, reads, writes or names a file hangs once in each command that has files."""
    if not HANG_DISK.exists():
        print("skipped: a disk that hangs: sanitizers want LD_PRELOAD for themselves")
        return
    folder = Path(TEMPORARY, "disk")
    folder.mkdir()
    model = folder / "model.gguf"
    shutil.copy(MODELS / MODEL, model)
    (folder / "text").write_text("one two three")
    made = lambda name: str(folder / name)
    commands = [(b"", "run", "-m", model, "-p", "a", "-n", "2"), (b"", "run", "-m", MODEL, "-f", made("text"), "-n", "2"),
                (b"", "convert", "-m", model, "-o", made("other.gguf"), "--type", "Q8_0"), (b"", "info", "-m", model),
                (b"hi\n/save " + made("kept").encode() + b"\n", "chat", "-m", MODEL, "-n", "2"),
                (b"", "run", "-m", MODEL, "-p", "a b c", "-n", "2", "--prompt-cache", made("cache")),
                (b"", "run", "-m", MODEL, "-p", "a", "-n", "2", "--cache-packed", made("packed")),
                (b"", "trace", "-m", MODEL, "-p", "a", "-n", "1", "-o", made("trace")), (b"", "schedule", "-m", MODEL, "--save", made("schedule")),
                (b"", "logits", "-m", MODEL, "--ids", "1,2", "-o", made("logits")), (b"a b", "tokenize", "-m", model),
                (b"", "perplexity", "-m", MODEL, "-f", made("text")), (b"", "serve", "-m", model, "--port", "0")]
    functions = "open fopen fread fwrite read pread fsync ftruncate rename unlink".split()
    runs = [(function, folder, stdin, *map(str, command)) for stdin, *command in commands for function in functions]
    with ThreadPoolExecutor(8) as pool:
        reached = sum(pool.map(lambda run: hangs_on_disk(*run), runs))
    check(reached > 2 * len(commands), f"{reached} hanging calls")
    print(f"{reached} hanging calls of {len(runs)} tried")


def long_work():
    def answer():
        child = start("run", "-m", *SLOW, "-p", "one two", "-n", "100000")
        child.stdin.close()  # it would be read as a part of the prompt
        child.stdout.read(1)
        return child

    def convert():
        child = start("convert", "-m", "synthetic:llama-3.2-1b", "-o", TEMPORARY + "/large.gguf", "--type", "Q5_1")
        time.sleep(0.5)
        return child

    def bench():
        child = start("bench", "-m", "synthetic:smollm2-135m", "-p", "512", "-n", "5000", "-t", "1")
        time.sleep(0.5)
        return child
    for_signals("run", answer)
    for_signals("convert", convert)
    for_signals("bench", bench)
    check(not Path(TEMPORARY, "large.gguf").exists(), "no half a file has its name")
    ends("run, closed pipe", answer(), lambda child: child.stdout.close())


def gpu_functions():
    """The functions of the driver without a GPU (fake_cuda/README.md)."""
    return re.findall(r"^EXPORT (cu\w+)", (HERE / "fake_cuda/driver.c").read_text(), re.M)


def hangs_at(function, *command, closes=False):
    """Whether the command calls the function, which does not return; then it ends after SIGINT, or when nobody reads its output."""
    child = start(*command, "--device", "cuda", environment={"LD_LIBRARY_PATH": str(FAKE_CUDA), "QUIPU_FAKE_CUDA_HANGS": function})
    child.stdin.close()
    said = b""
    while b" hangs\n" not in said:
        line = child.stderr.readline()
        said += line
        if not line or b"without GPU code" in line or b" ready" in line:
            break
    reached = b" hangs\n" in said
    if reached and closes:
        ends(f"{command[0]}, {function}, closed pipe", child, lambda child: child.stdout.close())
    elif reached:
        ends(f"{command[0]}, {function}", child, lambda child: child.send_signal(signal.SIGINT))
        check(child.returncode != 0, f"{command} after SIGINT: status 0")
    child.kill()
    child.wait()
    for pipe in (child.stdout, child.stderr):
        pipe.close()
    return b"without GPU code" not in said and reached


def waits_for_gpus():
    """Every function of the driver hangs once, and for each command those that begin, give memory and wait."""
    tiny = ("-m", "synthetic:tiny")
    every = ("run", *tiny, "-p", "1,2,3", "-n", "4")
    others = [("chat", "-m", MODEL), ("bench", *tiny, "-p", "4", "-n", "4"), ("trace", *tiny, "--ids", "1,2", "-n", "2"),
              ("logits", *tiny, "--ids", "1,2"), ("diff", *tiny, "--b", "cuda"), ("perplexity", "-m", MODEL, "-f", "llama-text/config.json"),
              ("ops", "check", "rms_norm"), ("plan", *tiny), ("serve", *tiny, "--port", "0")]
    runs = [(function, *every) for function in gpu_functions()]
    runs += [(function, *command) for command in others for function in ("cuInit", "cuMemAlloc_v2", "cuLaunchKernelEx", "cuStreamSynchronize", "cuStreamSynchronize:8")]
    with ThreadPoolExecutor(8) as pool:
        reached = sum(pool.map(lambda run: hangs_at(*run), runs))
        reached += sum(pool.map(lambda run: hangs_at("cuStreamSynchronize:8", *run, closes=True), (every, *others[1:2], *others[3:6])))
    print(f"{reached} hanging calls in {len(runs)} runs" if reached else "skipped: a GPU that hangs: the build has no GPU code")


def server():
    def serve():
        child = start("serve", "-m", MODEL, "--port", "0")
        while b"listening" not in child.stderr.readline():
            pass
        return child
    for number in (signal.SIGINT, signal.SIGTERM):
        child = serve()
        ends(f"serve, {number.name}", child, lambda child: child.send_signal(number))


sys.exit(run_parts(waits_for_hanging_disks, waits_for_gpus, waits_for_peers, waits_for_programs, waits_for_input, waits_for_disks, long_work, server))
