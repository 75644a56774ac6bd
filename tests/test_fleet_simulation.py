#!/usr/bin/env python3
"""quipu load --simulate: fleets small enough to compute by hand, what must hold of large ones, and the table and
picture of doc/fleet-simulation.*. With QUIPU_TRACES, the folder of the traces, rows of the table are computed again. Ends with "N passed, N failed"."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
import fleet_simulation as doc  # noqa: E402
from server_process import run_tests, test  # noqa: E402

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
FOLDER = tempfile.TemporaryDirectory()
ROW = "m,cpu,1,1,%d,%d,%s,%.12f,0,0\n"

# A pass of n rows takes 10 ms and n times 0.1 ms; a position takes 0.001 ms of a row that decodes, 0.002 ms of a prompt's.
PRODUCTS, PER_DECODED, PER_PROMPT = (lambda rows: 10 + 0.1 * rows), 0.001, 0.002


def costs_text():
    lines = ["model,device,gigabytes,threads,parallel,depth,test,tokens_per_second,deviation,gigabytes_per_second\n"]
    for rows in (1, 2, 64):
        for depth in (0, 1000):
            lines.append(ROW % (rows, depth, "tg9", 1e3 * rows / (PRODUCTS(rows) + PER_DECODED * rows * (depth + 5))))
    for rows in (100, 2000):
        for depth in (0, 4000):
            lines.append(ROW % (1, depth, f"pp{rows}", 1e3 * rows / (PRODUCTS(rows) + PER_PROMPT * rows * (depth + (rows + 1) / 2))))
    return "".join(lines)


def file(name, text):
    path = Path(FOLDER.name) / name
    path.write_text(text)
    return str(path)


def load(trace, *arguments, costs=None):
    """Exit status, figures, standard error."""
    done = subprocess.run([QUIPU, "load", "--simulate", costs or file("costs.csv", costs_text()), "--replay", file("trace", trace), "--json", *arguments],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def csv(*rows):
    return "".join("%g,%d,%d\n" % row for row in rows)


def near(value, expected):
    assert abs(value - expected) <= 1e-4 * max(expected, 1e-3), (value, expected)


def read_ms(rows, before=0):
    return PRODUCTS(rows) + PER_PROMPT * rows * (before + (rows + 1) / 2)


@test
def one_request(_):
    code, f, said = load(csv((0, 300, 4)))
    assert code == 0, said
    near(f["p50_ttft_ms"], read_ms(300))
    near(f["p50_e2el_ms"], read_ms(300) + sum(PRODUCTS(1) + PER_DECODED * (300 + made) for made in (1, 2, 3)))
    code, f, _ = load(csv((0, 300, 1)), "--chunk", "200")  # two passes
    near(f["p50_ttft_ms"], read_ms(200) + read_ms(100, 200))
    near(f["p50_e2el_ms"], f["p50_ttft_ms"])


@test
def requests_share_passes(_):
    """The second comes while the first decodes: its prompt is read in the pass after the one under way."""
    first = read_ms(100)
    code, f, said = load(csv((0, 100, 50), (first / 1e3 + 0.001, 200, 1)))
    assert code == 0, said
    under_way = PRODUCTS(1) + PER_DECODED * 101
    shared = PRODUCTS(201) + PER_DECODED * 102 + PER_PROMPT * 200 * 100.5
    near(f["max_ttft_ms"], under_way - 1 + shared)
    code, f, _ = load(csv((0, 100, 3), (0, 100, 3)), "--parallel", "1")  # the second waits for the slot
    alone = first + sum(PRODUCTS(1) + PER_DECODED * (100 + made) for made in (1, 2))
    near(f["max_ttft_ms"], alone + first)


@test
def blocks_are_cached(_):
    line = '{"timestamp": %d, "input_length": 1200, "output_length": 1, "hash_ids": [%s]}\n'
    trace = line % (0, "1, 2, 3") + line % (5000, "1, 2, 4") + line % (10000, "7, 8, 9") + line % (15000, "1, 2, 5")
    code, f, said = load(trace)
    assert code == 0 and f["total_cached_tokens"] == 2 * 1024, (f, said)
    near(f["max_ttft_ms"], read_ms(1200))
    near(f["p50_ttft_ms"] * 2, read_ms(176, 1024) + read_ms(1200))
    assert load(trace, "--kv-positions", "1300")[1]["total_cached_tokens"] == 1024  # the third takes the place of the first two's blocks
    scattered = load(trace, "--servers", "2", "--router", "round_robin")[1]
    assert scattered["total_cached_tokens"] == 1024, scattered  # of the fourth, at the second's server
    together = load(trace, "--servers", "2", "--router", "cache_aware")[1]
    assert together["total_cached_tokens"] == 2048, together


@test
def nothing_is_lost(_):
    """Every rule answers every request of a crowd; a larger fleet is not slower."""
    trace = csv(*((i * 0.01, 50 + 37 * i % 900, 1 + 13 * i % 60) for i in range(400)))
    tokens = sum(1 + (13 * i) % 60 for i in range(400))
    for rule in doc.RULES:
        last = None
        for servers in ("1", "4", "100"):
            code, f, said = load(trace, "--router", rule, "--servers", servers, "--copies", "3", "--slo", "ttft:100")
            assert code == 0 and f["completed"] == 1200 and f["total_output_tokens"] == 3 * tokens, said
            assert last is None or f["p99_ttft_ms"] <= last, (rule, servers, f["p99_ttft_ms"], last)
            last = f["p99_ttft_ms"]
        assert load(trace, "--router", rule, "--servers", "4")[1] == load(trace, "--router", rule, "--servers", "4")[1]


@test
def refusals(_):
    one = csv((0, 300, 4))
    code, f, said = load(one + csv((1, 2000, 1)), "--kv-positions", "400")
    assert code == 1 and f["refused"] == 1 and f["completed"] == 1 and "--kv-positions" in said, (f, said)
    for text, expected in (("", "no two tests ppN"), ("what\n", "line 1 of the costs"), (ROW % (1, 0, "tg0", 5), "line 1"), (ROW % (1, 0, "pp5", 0), "line 1"),
                           (ROW % (0, 0, "pp5", 5), "line 1"), (ROW % (1, 0, "xx5", 5), "line 1"),
                           (ROW % (1, 0, "pp5", 5) + ROW % (1, 9, "pp5", 5), "no two tests tgN"), (ROW % (1, 0, "pp5", 5) * 300, "more than 256 rows"),
                           ("".join(ROW % (1, depth, test, 5) for depth in (0, 9) for test in ("pp1", "tg5")), "of one size")):
        code, f, said = load(one, costs=file("bad.csv", text))
        assert code and expected in said and f is None, (text[:80], said)
    for more in (("--streams", "2"), ("--warmup", "1")):
        assert "--simulate needs times" in load(one, *more)[2]
    assert "cannot" in load(one, costs=FOLDER.name + "/none")[2]
    assert "--url" in load(one, "--url", "http://127.0.0.1:1")[2]
    for option in ("--servers", "--copies", "--parallel", "--chunk", "--kv-positions"):
        said = subprocess.run([QUIPU, "load", "--url", "http://127.0.0.1:1", option, "3"], capture_output=True, text=True)
        assert said.returncode and f"{option} needs --simulate" in said.stderr, said
    assert subprocess.run([QUIPU, "load", "--simulate", file("costs.csv", costs_text())], capture_output=True).returncode


@test
def the_picture_is_of_the_table(_):
    assert doc.PICTURE.read_text() == doc.picture(doc.read()), "doc/fleet-simulation.svg: draw it again with bench/fleet_simulation.py draw"
    assert [(r["trace"], int(r["servers"]), r["rule"]) for r in doc.read()] == [(t, n, r) for t in doc.TRACES for n in doc.SERVERS for r in doc.RULES]


@test
def the_table_is_what_the_traces_give(_):
    traces = os.environ.get("QUIPU_TRACES")
    if not traces:
        print("skipped: the table of fleets: QUIPU_TRACES names no folder with the traces")
        return
    for row in doc.read():
        if int(row["servers"]) <= 10:
            again = doc.figures(traces, row["trace"], int(row["servers"]), row["rule"])
            assert again == list(row.values()), (row, again)


sys.exit(run_tests(begin=contextlib.nullcontext))
