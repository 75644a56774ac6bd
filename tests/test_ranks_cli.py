#!/usr/bin/env python3
"""Ranks from the command line: threads, and processes by MPI. They give the
bits of one rank; a rank that is killed, hangs or differs ends the run with a message that names it.
RANKS_KILLS=N kills N times; RANKS_LONG=1 takes more models and up to 8 processes; RANKS_WITHOUT_MPI=1 leaves the processes out. Ends with "N passed, N failed"."""
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root"]
KILLS = int(os.environ.get("RANKS_KILLS", "2"))
LIMIT_S = 60  # no run is judged by its time, but one that hangs
MODELS = ["golden/models/llama-tied-gqa3", "golden/models/llama-gqa4-sharded", "synthetic:tiny:Q8_0"]
LONG = ["golden/models/llama-minimal", "golden/models/llama-gqa8-f16.gguf", "golden/models/llama-attention-bias",
        "golden/models/llama-mlp-bias", "golden/models/llama-blocks256.gguf", "golden/models/qwen2",
        "golden/models/qwen3", "golden/models/mistral", "golden/models/internlm2"]
os.chdir(os.path.dirname(os.path.abspath(__file__)))
passed = failed = 0


def check(name, ok, told=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {told}")


def quipu(*arguments, ranks=0):
    """(exit status, standard output, standard error); `ranks`: processes that mpirun starts"""
    command = [*MPIRUN, "-n", str(ranks)] if ranks else []
    done = subprocess.run([*command, QUIPU, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def figures(text):
    """What was computed, without times; mpirun may break lines."""
    return re.sub(r'"[a-z]+_seconds": [0-9.e-]+', "", "".join(text.split()))


def test_bits(mpi):
    for model in MODELS:
        logits = ["logits", "-m", model, "--ids", "1,2,3,4,5,6,7", "--json", "-t", "1"]
        code, want, err = quipu(*logits)
        check(f"{model}: one rank", code == 0, err)
        code, found, err = quipu(*logits, "--ranks", "2")
        check(f"{model}: two threads", code == 0 and found == want, err)
        for ranks in (2, 3) if mpi else ():
            code, found, err = quipu(*logits, ranks=ranks)
            check(f"{model}: {ranks} processes", code == 0 and figures(found) == figures(want), err)
        if mpi:
            code, found, err = quipu(*logits, "--ranks-by", "messages", ranks=2)
            check(f"{model}: messages", code == 0 and figures(found) == figures(want), err)
    run = ["run", "-m", MODELS[2], "-p", "1,2,3", "-n", "40", "--temp", "1.2", "--seed", "5", "--json", "-t", "1"]
    want = json.loads(quipu(*run)[1])["tokens"]
    check("sampled tokens of threads", json.loads(quipu(*run, "--ranks", "2")[1])["tokens"] == want)
    if mpi:
        code, found, err = quipu(*run, "--ranks", "2", "--ranks-by", "mpi")
        tokens = re.search(r'"tokens":\[([0-9,]*)\]', "".join(found.split()))
        check("sampled tokens of processes that quipu starts",
              code == 0 and tokens and tokens[1] == ",".join(map(str, want)), err + found)
        os.environ["TERM"] = "xterm"  # mpirun's processes have a terminal, which is not that of the answer
        code, found, err = quipu("run", "-m", "golden/models/llama-text.gguf", "--raw", "-p", "the cat", "-t", "1",
                                 "--grammar", 'root ::= ([a-z]{8} " "){15}', "--ranks", "2", "--ranks-by", "mpi")
        check("an answer of processes is plain text", code == 0 and len(found) > 130 and "\x1b" not in found, err + found)


def test_diff():
    for model in MODELS:
        code, found, err = quipu("diff", "-m", model, "--ranks", "3" if model == MODELS[0] else "2", "--a", "operators",
                                 "--b", "threads", "-t", "1", "--json")
        check(f"{model}: every tensor of ranks is that of one", code == 0 and '"ranks"' in found, err)


def test_schedules(mpi):
    """A file with the queues of both ranks runs as threads and as processes; traces have tracks of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        file, trace = f"{folder}/queues", f"{folder}/trace.json"
        made = ["schedule", "-m", "synthetic:tiny", "--ranks", "2", "--workers", "2", "--assign", "dag"]
        code, found, err = quipu(*made, "--rank", "1", "--verify", "--save", file)
        check("schedules of two ranks", code == 0 and "all ranks together" in found, err + found)
        code, found, err = quipu("schedule", "-m", "synthetic:tiny", "--ranks", "2", "--load", file)
        check("schedules of two ranks are read", code == 0 and "all ranks together" in found, err + found)
        run = ["run", "-m", "synthetic:tiny", "-p", "1,2,3", "-n", "8"]
        want = quipu(*run)[1].strip()
        code, found, err = quipu(*run, "--ranks", "2", "--schedule", file)
        check("a schedule for threads", code == 0 and found.strip() == want, err)
        code, _, err = quipu(*run, "--schedule", file)
        check("a schedule for more ranks", code != 0 and "schedules of 2 ranks, but there is 1" in err, err)
        if mpi:
            code, found, err = quipu(*run, "--schedule", file, ranks=2)
            check("a schedule for processes", code == 0 and "".join(found.split()) == want, err)
        for ranks in (0, 2) if mpi else (0,):
            code, _, err = quipu("trace", "-m", "synthetic:tiny", "--ids", "1,2,3", "-n", "3", "-t", "1", "-o", trace,
                                 *([] if ranks else ["--ranks", "2"]), ranks=ranks)
            check("a trace of two ranks", code == 0, err)
            if code == 0:
                check_trace(trace)
    code, _, err = quipu("schedule", "-m", "synthetic:tiny", "--ranks", "2", "--rank", "2")
    check("a rank past the last", code != 0 and "--rank is 0 to 1" in err, err)
    code, _, err = quipu("schedule", "-m", "synthetic:tiny", "--ranks", "2", "--compare")
    check("ranks are not compared", code != 0 and "--compare" in err, err)
    code, _, err = quipu("trace", "-m", "synthetic:tiny", "--ids", "1", "--ranks", "2", "--parts")
    check("parts are of one rank", code != 0 and "parts of operators are timed on one rank" in err, err)


def check_trace(path):
    """Every exchange of the two ranks overlaps, by one clock."""
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    check("tracks", names == ["passes", "rank 0 worker 0", "rank 1 worker 0"], names)
    met = [[(event["ts"], event["ts"] + event["dur"]) for event in events
            if event["name"] == "all_gather" and event.get("cat") == "work" and event["tid"] == rank + 2]
           for rank in range(2)]
    apart = [pair for pair in zip(*met) if max(begin for begin, _ in pair) > min(end for _, end in pair) + 50]
    check("exchanges overlap", met[0] and len(met[0]) == len(met[1]) and not apart, apart)


def test_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([*MPIRUN, "-n", "2", QUIPU, "serve", "-m", "synthetic:tiny", "-t", "1", "--port", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}).encode()
    answer = ""
    while server.poll() is None:
        time.sleep(0.1)
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body,
                                             {"Content-Type": "application/json"})
            answer = urllib.request.urlopen(request, timeout=LIMIT_S).read().decode()
            break
        except OSError as problem:
            answer = str(problem)
    server.terminate()
    err = server.communicate(timeout=LIMIT_S)[1]
    check("a server of two processes", '"completion_tokens":4' in answer.replace(" ", ""), answer + err)


def test_tables():
    """The tables of bench say how many ranks there were."""
    bench = ["bench", "-m", "synthetic:tiny", "-p", "4", "-n", "0", "-r", "1", "--ranks", "2", "-o"]
    _, text, err = quipu(*bench, "md")
    check("a table of ranks", text.startswith("| ranks | model ") and "\n| 2 | synthetic:tiny " in text, text + err)
    check("rows of ranks", quipu(*bench, "csv")[1].splitlines()[1].startswith("2,synthetic:tiny,"))
    check("objects of ranks", json.loads(quipu(*bench, "json")[1])[0]["ranks"] == 2)


def test_refusals(mpi):
    code, _, err = quipu("run", "-m", "synthetic:tiny", "-p", "1,2", "--ranks", "5")
    check("too many ranks", code != 0 and "5 ranks cannot share 4 heads" in err, err)
    if not mpi:
        return
    code, _, err = quipu("run", "-m", "synthetic:tiny", "-p", "1,2", "--ranks", "3", ranks=2)
    check("two numbers of ranks", code != 0 and "mpirun has started 2" in err, err)
    run = [QUIPU, "run", "-p", "1,2", "-t", "1", "-m"]
    for other, what in (["synthetic:tiny", "-c", "64"], "set of options"), \
            (["synthetic:tiny", "--exec", "operators"], "set of options"), (["synthetic:tiny:F32:2"], "model"):
        command = [*MPIRUN, "-n", "1", *run, "synthetic:tiny:F32", ":", "-n", "1", *run, *other]
        if what != "model":
            command[command.index("synthetic:tiny:F32")] = "synthetic:tiny"
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        check(f"a rank with {other}", done.returncode != 0 and f"rank 1 has another {what}" in done.stderr,
              done.stderr)


def start(ranks):
    command = [*MPIRUN, "-n", str(ranks), QUIPU, "run", "-m", "synthetic:tiny", "-p", "1,2,3", "-n", "190000",
               "-c", "200000", "--ignore-eos", "-t", "1"]
    text = tempfile.TemporaryFile()
    job = subprocess.Popen(command, stdout=text, stderr=subprocess.PIPE, text=True)
    while job.poll() is None:
        time.sleep(0.1)
        if os.fstat(text.fileno()).st_size == 0:
            continue  # it reads the model
        listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(job.pid)], capture_output=True, text=True)
        pids = [int(line.split()[0]) for line in listed.stdout.splitlines() if " run -m " in line]
        if len(pids) == ranks:
            return job, sorted(pids)
    job.terminate()  # mpirun ends its processes
    return job, []


def end(job, pids):
    begin = time.monotonic()
    try:
        err = job.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        job.kill()
        err = "it did not end"
    took = time.monotonic() - begin
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            err += f" process {pid} was left"
        except ProcessLookupError:
            pass
    return job.returncode, err, took


def test_more_bits():
    """Tied, untied and biased models, 1 to 8 query heads on a KV head, by memory and by messages."""
    tried = 0
    for model in MODELS + LONG:
        logits = ["logits", "-m", model, "--ids", "1,2,3,4,5,6,7", "--json", "-t", "1"]
        want = figures(quipu(*logits)[1])
        for ranks in 2, 3, 4, 8:
            for by in "mpi", "messages":
                code, found, err = quipu(*logits, "--ranks-by", by, ranks=ranks)
                if f"{ranks} ranks cannot share" in err:
                    continue
                tried += 1
                check(f"{model}: {ranks} processes by {by}", code == 0 and figures(found) == want, err)
    print(f"{tried} runs of {len(MODELS + LONG)} models on 2 to 8 processes")


def test_deaths():
    chance = random.Random(1)
    for i in range(KILLS):
        job, pids = start(2)
        check("two processes run", len(pids) == 2, pids)
        if len(pids) < 2:
            return
        time.sleep(0.5 + chance.random())
        os.kill(pids[i % 2], signal.SIGKILL)
        code, err, took = end(job, [])
        check(f"rank {i % 2} is killed", code != 0 and "rank" in err and took < LIMIT_S, (code, err, took))
    job, pids = start(2)
    time.sleep(1)
    os.kill(pids[1], signal.SIGSTOP)
    code, err, took = end(job, pids)
    check("a rank hangs", code != 0 and "rank 1 has not answered rank 0" in err and took < 2 * LIMIT_S,
          (code, err, took))


def main():
    mpi = "RANKS_WITHOUT_MPI" not in os.environ
    if not mpi:
        print("skipped: RANKS_WITHOUT_MPI leaves out processes")
    test_bits(mpi)
    test_diff()
    test_tables()
    test_refusals(mpi)
    test_schedules(mpi)
    if mpi:
        test_server()
        test_deaths()
        if "RANKS_LONG" in os.environ:
            test_more_bits()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
