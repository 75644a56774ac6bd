#!/usr/bin/env python3
"""Ranks on GPUs from the command line, over the driver without a GPU (fake_cuda/README.md): which exchange is
chosen, and how a run ends when a rank is missing, differs, is killed or hangs. Kernels do not run, so every token
is 0. Ends with "N passed, N failed"."""
import os
import re
import signal
import subprocess
import tempfile
import time

QUIPU = os.path.abspath(os.environ.get("QUIPU_BINARY", "build/quipu"))
FAKE = os.path.join(os.path.dirname(QUIPU), "tests/fake_cuda")
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
MPI = "RANKS_WITHOUT_MPI" not in os.environ
RUN = ["run", "-m", "synthetic:tiny:BF16", "-p", "1,2,3", "-n", "5"]
HIDDEN = 256  # of this model
LIMIT_S = 180  # a run that hangs never ends; others end within seconds, or later on a busy machine
passed = failed = 0


def check(name, ok, told=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {told}")


def environment(**more):
    path = FAKE + ":" + os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": path, **{k: str(v) for k, v in more.items()}}


def run(*arguments, ranks=0, shell=None, **more):
    """(exit status, output and messages); `ranks`: processes that mpirun starts; `shell`: commands before each of
    them"""
    command = [*MPIRUN, "-n", str(ranks)] if ranks else []
    command += ["sh", "-c", shell + '; exec "$0" "$@"'] if shell else []
    try:
        done = subprocess.run([*command, QUIPU, *RUN, *arguments], capture_output=True, text=True, timeout=LIMIT_S,
                              env=environment(**more))
    except subprocess.TimeoutExpired:
        return None, f"no end within {LIMIT_S} s"
    return done.returncode, done.stdout + done.stderr


def runs(name, *arguments, ranks=0, told="", **more):
    code, text = run("--device", "cuda", *arguments, ranks=ranks, **more)
    check(name, code == 0 and "0,0,0,0,0" in text and told in text, text)


def refuses(name, message, *arguments, ranks=0, **more):
    code, text = run("--device", "cuda", *arguments, ranks=ranks, **more)
    check(name, code and message in re.sub(r"\s+", " ", text), text)


def test_rows():
    """The rows of a long prompt are cut among ranks: after each product of partial sums but those of the last layer a
    rank copies its part of the other's rows there, from a stream of its own, and then adds up its own rows."""
    prompt = ",".join(str(1 + i % 500) for i in range(1201))
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        runs("a prompt whose rows are cut", "--ranks", "2", "-p", prompt, "-c", "1300", QUIPU_FAKE_CUDA_LOG=log)
        with open(log, encoding="utf-8") as file:
            text = file.read()
    copies = re.findall(r"copy on device stream (\d+): .*?, (\d+) bytes", text)
    sums = re.findall(r"launch run_all_reduce_rows stream (\d+)", text)
    rows = sorted(int(size) // (HIDDEN * 4) for _, size in copies)
    check("copies between ranks", rows == [600, 600, 601, 601] and len({s for s, _ in copies}) == 2, copies)
    check("sums of rows", len(sums) == 4 and not set(sums) & {s for s, _ in copies}, sums)


def test_threads():
    runs("peers", "--ranks", "2")
    test_rows()
    runs("host", "--ranks", "2", "--exchange", "host")
    runs("nccl", "--ranks", "2", "--exchange", "nccl")
    runs("a GPU for two ranks", "--gpus", "0,0", told="through the host's memory")
    runs("a GPU for three ranks", "--gpus", "0,1,0", "--cut", "gather")
    for exchange in ("peers", "nccl"):
        refuses(f"a GPU for two ranks by {exchange}", "ranks 0 and 1 would run on GPU 0 both", "--gpus", "0,0",
                "--exchange", exchange)
    refuses("the megakernel without peers", "write to each other's memory", "--gpus", "0,0", "--exec", "megakernel")
    refuses("NCCL that gets stuck", "has waited 3 seconds for an exchange of NCCL", "--ranks", "2", "--exchange",
            "nccl", QUIPU_FAKE_NCCL_STUCK=20)
    refuses("NCCL that fails", "remote process exited", "--ranks", "2", "--exchange", "nccl", QUIPU_FAKE_NCCL_FAILS=3,
            QUIPU_FAKE_NCCL_STUCK=3)


def test_processes():
    runs("processes by nccl", ranks=2)
    runs("processes that quipu starts", "--ranks", "2", "--ranks-by", "mpi")
    runs("processes by host", "--exchange", "host", ranks=2)
    runs("processes by messages", "--ranks-by", "messages", "--exchange", "host", ranks=2)
    runs("processes that share a GPU", "--gpus", "0", ranks=3, told="through the host's memory")
    runs("other versions of NCCL", ranks=2, shell="export QUIPU_FAKE_NCCL_VERSION=2270$OMPI_COMM_WORLD_RANK",
         told="through the host's memory")
    refuses("other versions, and NCCL is asked for", "rank 1 has NCCL 2.27.1 and rank 0 has 2.27.0", "--exchange",
            "nccl", ranks=2, shell="export QUIPU_FAKE_NCCL_VERSION=2270$OMPI_COMM_WORLD_RANK")
    refuses("peers", "ranks by MPI are processes", "--exchange", "peers", ranks=2)
    refuses("a GPU for two processes by nccl", "ranks 0 and 1 have the same GPU", "--gpus", "0", "--exchange", "nccl",
            ranks=2)
    refuses("fewer GPUs than processes", "which has 2 GPUs for this process", ranks=3)
    refuses("fewer GPUs named than processes", "--gpus names 2 GPUs", "--gpus", "0,1", ranks=3)
    refuses("no such GPU", "there is no GPU 5", "--gpus", "0,5", ranks=2)
    refuses("the megakernel", "write to each other's memory", "--exec", "megakernel", ranks=2)
    refuses("NCCL that gets stuck on a rank", "has ended, or hangs", ranks=2,
            shell='[ $OMPI_COMM_WORLD_RANK = 0 ] || export QUIPU_FAKE_NCCL_STUCK=20')


def children_of(process):
    """rank -> process"""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{entry}/environ") as file:
                rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", file.read())
        except OSError:
            continue
        if parent == process and rank:
            found[int(rank[1])] = int(entry)
    return found


def end(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wait_until(happened):
    deadline = time.monotonic() + LIMIT_S
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.05)
    return happened()


def kill_one(exchange, number, folder):
    """Ends or stops rank 1 of two when both launch kernels. The other must end by itself."""
    logs = [f"{folder}/{rank}" for rank in range(2)]
    start = f'export QUIPU_FAKE_CUDA_LOG={folder}/$OMPI_COMM_WORLD_RANK; exec "$0" "$@"'
    command = [*MPIRUN, "-n", "2", "sh", "-c", start, QUIPU, "bench", "-m", "synthetic:tiny:BF16", "-p", "16", "-n",
               "20000", "-r", "1000", "-c", "20480", "--device", "cuda", "--exchange", exchange]
    with open(f"{folder}/messages", "w+", encoding="utf-8") as messages:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, env=environment())
        launched = wait_until(lambda: all(os.path.exists(log) and os.path.getsize(log) for log in logs))
        victim = children_of(child.pid).get(1)
        if victim:
            os.kill(victim, number)
        ended = wait_until(lambda: child.poll() is not None)
        if not ended:
            child.kill()
        if victim and number == signal.SIGSTOP:
            end(victim)
        messages.seek(0)
        check(f"{exchange}, {number.name}", launched and victim and ended and child.wait() != 0,
              f"launched {launched}, ended {ended}, {child.returncode}, {messages.read()}")


def test_kills():
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for exchange in ("host", "nccl"):
            with tempfile.TemporaryDirectory() as folder:
                kill_one(exchange, number, folder)


if b"without GPU code" in subprocess.run([QUIPU, "version"], capture_output=True, check=True).stdout:
    print("skipped: the build has no GPU code")
    raise SystemExit(77)
test_threads()
if MPI:
    test_processes()
    test_kills()
else:
    print("skipped: RANKS_WITHOUT_MPI leaves out processes")
print(f"{passed} passed, {failed} failed")
raise SystemExit(failed > 0)
