"""Data sets of FlashInfer-Bench from elsewhere: `quipu ops import FOLDER` and `ops leaderboard`.

The data set is made here: a definition whose reference is plain Python, workloads with random, scalar and
safetensors inputs, and solutions in Python and C, right, wrong and hostile ones. `test_exchange.py FOLDER` only
writes it there. With QUIPU_TEST_PYTHON, a Python
that has PyTorch and flashinfer-bench, the package must read all of it, and solutions use torch.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
PYTHON = os.environ.get("QUIPU_TEST_PYTHON")
REFERENCE = '''
import array


def run(x, index, scale):
    """out[i, j] = scale * x[index[i], j]; total[i]: the sum of its row."""
    n, m = len(index), x.shape[1]
    out = [[scale * float(x[int(index[i]), j]) for j in range(m)] for i in range(n)]
    flat = array.array("f", [value for row in out for value in row])
    return memoryview(flat).cast("B").cast("f", [n, m]), memoryview(array.array("f", [sum(row) for row in out]))
'''
RIGHT = '''
def run(x, index, scale, out, total):
    for i in range(len(index)):
        row = int(index[i])
        total[i] = 0
        for j in range(x.shape[1]):
            out[i, j] = scale * float(x[row, j])
            total[i] = float(total[i]) + float(out[i, j])
'''
RIGHT_C = '''
#include "quipu_kernel.h"
enum { X, INDEX, OUT, TOTAL };
void run(const op_call *call)
{
    const float *x = call->tensors[X].data, scale = (float)call->params[0];
    const int32_t *index = call->tensors[INDEX].data;
    float *out = call->tensors[OUT].data, *total = call->tensors[TOTAL].data;
    int64_t n = call->tensors[INDEX].shape[0], m = call->tensors[X].shape[1];
    for (int64_t i = 0; i < n; i++) {
        total[i] = 0;
        for (int64_t j = 0; j < m; j++)
            total[i] += out[i * m + j] = scale * x[index[i] * m + j];
    }
}
'''
# name -> (language, entry, source, returns its results, status, part of the log)
SOLUTIONS = {
    "plain": ("python", "main.py::run", RIGHT, False, "PASSED", ""),
    "compiled": ("c", "main.c::run", RIGHT_C, False, "PASSED", ""),
    "returning": ("python", "a/main.py::run", "from .other import run\n", True, "PASSED", ""),
    "wrong": ("python", "main.py::run", RIGHT.replace("scale *", "2 * scale *"), False, "INCORRECT_NUMERICAL",
              "elements are wrong"),
    "lazy": ("c", "main.c::run", RIGHT_C.replace("i < n", "i < n - 1"), False, "INCORRECT_NUMERICAL", "out: "),
    "shape": ("python", "main.py::run", REFERENCE.replace("[n, m])", "[m, n])"), True, "INCORRECT_SHAPE",
              "out has the shape"),
    "type": ("python", "main.py::run", REFERENCE.replace('cast("f", [n', 'cast("i", [n'), True, "INCORRECT_DTYPE",
             "out is int32"),
    "raising": ("python", "main.py::run", "def run(*all):\n    print('so far')\n    raise ValueError('enough')\n",
                False, "RUNTIME_ERROR", "ValueError: enough"),
    "leaving": ("python", "main.py::run", "import os\ndef run(*all):\n    os._exit(3)\n", False, "RUNTIME_ERROR",
                "status 3"),
    "crashing": ("c", "main.c::run", RIGHT_C.replace("out[i * m", "out[(i << 40) * m"), False, "RUNTIME_ERROR",
                 ""),
    "overrunning": ("c", "main.c::run",
                    RIGHT_C.replace("    int64_t n =", "    total[call->tensors[INDEX].shape[0]] = 1;\n    int64_t n ="),
                    False, "RUNTIME_ERROR", 'behind the end of "total"'),
    "changing": ("c", "main.c::run", RIGHT_C.replace("    int64_t n =", "    ((float *)x)[0] += 1;\n    int64_t n ="),
                 False, "RUNTIME_ERROR", 'changed its input "x"'),
    "broken": ("c", "main.c::run", "void run(", False, "COMPILE_ERROR", "error"),
    "missing": ("python", "main.py::walk", RIGHT, False, "COMPILE_ERROR", "walk"),
}
HANGING = """
import time


def run(x, *others):
    if x.shape[0] == 7:
        raise ValueError("seven")
    time.sleep(1000)
"""

# op_type sampling: tokens drawn from what top_k and top_p leave.
DRAW = """
import random


def run(probs, top_k, top_p, out):
    for row in range(probs.shape[0]):
        p = [float(probs[row, i]) for i in range(probs.shape[1])]
        order = sorted(range(len(p)), key=lambda i: -p[i])[:top_k]
        kept, total = [], 0
        while order and total < top_p:
            kept.append(order.pop(0))
            total += p[kept[-1]]
        out[row] = CHOICE
"""
SAMPLERS = {
    "right": ("random.choices(kept, [p[i] for i in kept])[0]", "PASSED", ""),
    "likeliest": ("kept[0]", "INCORRECT_NUMERICAL", "total variation distance"),
    "uniform": ("random.choice(kept)", "INCORRECT_NUMERICAL", "total variation distance"),
    "unlimited": ("random.choices(range(len(p)), p)[0]", "INCORRECT_NUMERICAL", "not among those that may be drawn"),
    "beyond": ("len(p)", "INCORRECT_NUMERICAL", "of a vocabulary of 50"),
    "seeded": ("random.Random(1).choices(kept, [p[i] for i in kept])[0]", "INCORRECT_NUMERICAL",
               "total variation distance"),
}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def safetensors(path, name, dtype, shape, data):
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def tensor(dtype, *shape):
    return {"shape": list(shape) if shape else None, "dtype": dtype}


def write_definition(root, name, reference):
    write(root / f"definitions/gather/{name}.json", json.dumps({
        "name": name, "op_type": "gather", "description": "Rows of x, scaled.", "tags": [],
        "axes": {"rows": {"type": "var"}, "n": {"type": "var"}, "m": {"type": "const", "value": 5}},
        "inputs": {"x": tensor("float32", "rows", "m"), "index": tensor("int32", "n"), "scale": tensor("float32")},
        "outputs": {"out": tensor("float32", "n", "m"), "total": tensor("float32", "n")},
        "constraints": ["n >= 1"], "reference": reference}))
    safetensors(root / f"blob/workloads/gather/{name}.safetensors", "rows", "I32", [3],
                struct.pack("<3i", 6, 0, 2))
    lines = [{"definition": name, "solution": None, "evaluation": None,
              "workload": {"uuid": f"{name}-{rows}", "axes": {"rows": rows, "n": 3},
                           "inputs": {"x": {"type": "random"}, "scale": {"type": "scalar", "value": 0.5},
                                      "index": {"type": "safetensors", "tensor_key": "rows",
                                                "path": f"./blob/workloads/gather/{name}.safetensors"}}}}
             for rows in (7, 9)]
    write(root / f"workloads/gather/{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


MARK = f"of test_exchange {os.getpid()}"


def write_solution(root, definition, name, language, entry, source, returns):
    path = entry.split("::")[0]
    source += f"\n{'//' if language == 'c' else '#'} {MARK}\n"
    sources = [{"path": path, "content": source}]
    if path.startswith("a/"):
        sources.append({"path": "a/other.py", "content": REFERENCE})
    write(root / f"solutions/test/gather/{definition}/{name}.json", json.dumps({
        "name": f"{definition}-{name}", "definition": definition, "author": "test", "sources": sources,
        "spec": {"language": language, "target_hardware": ["cpu"], "entry_point": entry, "dependencies": [],
                 "destination_passing_style": not returns}}))


def quipu(*words, env=()):
    done = subprocess.run([QUIPU, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **dict(env)}, timeout=300)
    return done.returncode, done.stdout, done.stderr


def check(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def import_all(root, python):
    code, out, err = quipu("ops", "import", root, "--save", "-r", "1", "-t", "1", "--timeout", "60", "--unconfined", "--python", python,
                           "--definition", "gather")
    traces = [json.loads(line) for line in out.splitlines()]
    check(code == 1 and len(traces) == 2 * len(SOLUTIONS), (code, out, err))
    for trace in traces:
        _, _, _, _, status, log = SOLUTIONS[trace["solution"].removeprefix("gather-")]
        found = trace["evaluation"]
        check(found["status"] == status and log in found["log"], (trace, status, log))
        check(("performance" in found) == (status == "PASSED"), trace)
        check(trace["workload"]["inputs"]["index"]["tensor_key"] == "rows", trace)
    raised = [t["evaluation"]["log"] for t in traces if t["solution"] == "gather-raising"]
    check(all("so far" in log and "Traceback" in log for log in raised), raised)
    saved = (root / "traces/gather/gather.jsonl").read_text()
    check(saved == out, saved)
    return traces


def end_one_that_hangs(root):
    write_solution(root, "gather", "hanging", "python", "main.py::run", HANGING, False)
    path = root / "solutions/test/gather/gather/hanging.json"
    code, out, err = quipu("ops", "import", path, "--data", root, "--timeout", "4", "--unconfined")
    statuses = [json.loads(line)["evaluation"]["status"] for line in out.splitlines()]
    check(code == 1 and statuses == ["RUNTIME_ERROR", "TIMEOUT"], (statuses, err))
    path.unlink()


def compare(root, traces):
    code, out, err = quipu("ops", "leaderboard", root, "--json")
    check(code == 0, err)
    board, = json.loads(out)
    passed = {name: item for item in board["solutions"] if (name := item["solution"])}
    check(len(passed) == len(SOLUTIONS) and board["definition"] == "gather", board)
    check(passed["gather-plain"]["passed"] == 2 and passed["gather-wrong"]["passed"] == 0, board)
    check(sum(item["fastest"] for item in board["solutions"]) == 2, board)
    speedups = [t["evaluation"]["performance"]["speedup_factor"] for t in traces
                if t["solution"] == "gather-compiled"]
    mean = (speedups[0] * speedups[1]) ** 0.5
    check(abs(passed["gather-compiled"]["mean_speedup"] / mean - 1) < 1e-6, (board, mean))
    for workload in board["workloads"]:
        times = {t["evaluation"]["performance"]["latency_ms"]: t["solution"] for t in traces
                 if t["workload"]["uuid"] == workload["uuid"] and "performance" in t["evaluation"]}
        check(workload["fastest"] == times[min(times)], workload)
    code, out, err = quipu("ops", "leaderboard", root)
    check(code == 0 and "gather-compiled" in out and "2 of 2" in out and "rows=7 n=3" in out, out)
    check(quipu("ops", "leaderboard", root / "nowhere")[0] != 0, "a folder that is not there")
    broken = root / "broken.jsonl"
    del traces[-1]["evaluation"]["environment"]["hardware"]
    broken.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    code, out, err = quipu("ops", "leaderboard", broken)
    check(code == 1 and '"hardware" is missing' in err, (code, err))
    broken.unlink()


def refuse(root):
    """What is wrong with data, a reference or a file is told, and no trace is made."""
    def told(text, *words):
        code, out, err = quipu("ops", "import", *words, "-r", "1", "--timeout", "60", "--unconfined")
        check(code in (1, 2) and out == "" and text in err, (text, code, out, err))

    right = root / "solutions/test/gather/gather/plain.json"
    code, out, err = quipu("ops", "import", right, "--data", root, "-r", "1")
    check(code == 1 and out == "" and "give --unconfined" in err, (code, out, err))
    told("--data names another data set", right)
    told("--save needs a data set", right, "--save")
    told("cannot be started", right, "--data", root, "--python", "/nowhere/python")
    told("it has no definitions", root / "blob")
    told("it has no solutions of definition other", root, "--definition", "other")
    for change, text in [(("float32", "float6_e2m3"), "float6_e2m3"), (('"rows", "m"', '"rows", "k"'), "names an axis"),
                         (("scale * float", "bad * float"), "NameError")]:
        with tempfile.TemporaryDirectory() as folder:
            broken = Path(folder)
            write_definition(broken, "gather", REFERENCE)
            path = broken / "definitions/gather/gather.json"
            path.write_text(path.read_text().replace(*change))
            told(text, right, "--data", broken)
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder)
        write_definition(broken, "gather", REFERENCE)
        for data, shape, text in [(b"\0" * 8, [2], "must be I32 [3]"), (b"\0" * 4, [3], "gather.safetensors")]:
            safetensors(broken / "blob/workloads/gather/gather.safetensors", "rows", "I32", shape, data)
            told(text, right, "--data", broken)
        path = broken / "workloads/gather/gather.jsonl"
        path.write_text(path.read_text().replace("./blob", "../blob"))
        told("must lie inside the data set", right, "--data", broken)


def with_the_package(root):
    """The package's own models read definitions, workloads, solutions and traces; torch runs in solutions."""
    script = """
import sys
from flashinfer_bench.data import TraceSet
data = TraceSet.from_path(sys.argv[1])
assert len(data.traces["gather"]) == int(sys.argv[2]), len(data.traces["gather"])
assert len(data.workloads["gather"]) == 2 and data.get_best_trace("gather").is_successful()
"""
    for path in root.glob("solutions/**/*.json"):
        if json.loads(path.read_text())["spec"]["language"] == "c":  # a language of quipu's own
            path.unlink()
    if subprocess.run([PYTHON, "-c", "import torch, flashinfer_bench"], stderr=subprocess.DEVNULL).returncode:
        return print("skipped: QUIPU_TEST_PYTHON has no flashinfer-bench")
    subprocess.run([PYTHON, "-c", script, str(root), str(2 * len(SOLUTIONS))], check=True)
    source = "import torch\ndef run(x, index, scale):\n    out = x[index.long()] * scale\n    return out, out.sum(dim=1)\n"
    write_solution(root, "gather", "torch", "python", "main.py::run", source, True)
    code, out, err = quipu("ops", "import", root / "solutions/test/gather/gather/torch.json", "--data", root, "-r", "1",
                           "--unconfined", "--python", PYTHON)
    check(code == 0 and out.count("PASSED") == 2, (out, err))


def judge_samplers():
    """Solutions of op_type sampling: their tokens must be allowed, and as frequent as they should be."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "definitions/sampling/draw.json", json.dumps({
            "name": "draw", "op_type": "sampling", "description": "Tokens.", "tags": [],
            "axes": {"rows": {"type": "var"}, "vocab": {"type": "const", "value": 50}},
            "inputs": {"probs": tensor("float32", "rows", "vocab"), "top_k": tensor("int32"), "top_p": tensor("float32")},
            "outputs": {"samples": tensor("int32", "rows")}, "constraints": [],
            "reference": DRAW.replace(", out", "").replace("    for", "    import array\n    out = array.array('i', [0] * "
                                                           "probs.shape[0])\n    for", 1)
                             .replace("CHOICE", SAMPLERS["right"][0]) + "    return memoryview(out)\n"}))
        write(root / "workloads/sampling/draw.jsonl", json.dumps({
            "definition": "draw", "solution": None, "evaluation": None,
            "workload": {"uuid": "draw-64", "axes": {"rows": 64}, "inputs": {
                "probs": {"type": "random"}, "top_k": {"type": "scalar", "value": 20},
                "top_p": {"type": "scalar", "value": 0.8}}}}) + "\n")
        for name, (choice, _, _) in SAMPLERS.items():
            write_solution(root, "draw", name, "python", "main.py::run", DRAW.replace("CHOICE", choice), False)
        code, out, err = quipu("ops", "import", root, "-r", "1", "--timeout", "60", "--unconfined")
        for trace in map(json.loads, out.splitlines()):
            _, status, log = SAMPLERS[trace["solution"].removeprefix("draw-")]
            found = trace["evaluation"]
            check(found["status"] == status and log in found["log"], (trace["solution"], found))
        check(out.count("\n") == len(SAMPLERS), (out, err))


def write_all(root):
    write_definition(root, "gather", REFERENCE)
    for name, (language, entry, source, returns, _, _) in SOLUTIONS.items():
        write_solution(root, "gather", name, language, entry, source, returns)


def main():
    if len(sys.argv) > 1:
        return write_all(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_all(root)
        traces = import_all(root, "python3")
        compare(root, traces)
        end_one_that_hangs(root)
        refuse(root)
        judge_samplers()
        if PYTHON:
            with_the_package(root)
    left = [path for path in Path("/tmp").glob("quipu-*/*") if is_own(path)]
    check(not left, f"left behind: {left}")


def is_own(path):
    """Whether a file is of a solution of this test; other programs of quipu have folders there too."""
    try:
        return path.is_file() and MARK.encode() in path.read_bytes()
    except OSError:  # just gone
        return False


if __name__ == "__main__":
    main()
