#!/usr/bin/env python3
"""quipu load against a small server whose delays and faults are known. Ends with "N passed, N failed"."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake_server import FIRST_MS, GAP_MS, FakeServer  # noqa: E402

QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
passed = failed = 0
FOLDER = tempfile.TemporaryDirectory()


def check(name, ok, told=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"failed: {name}: {told}")


def file(name, text):
    path = Path(FOLDER.name) / name
    path.write_text(text)
    return str(path)


def load(server, *arguments, model="plain", json_form=True):
    """(exit status, the figures or the table, standard error, what the server was asked)"""
    server.requests.clear()
    command = [QUIPU, "load", "--url", server.url, *arguments]
    command += ["--model", model] if model else []
    command += ["--json"] if json_form else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    figures = json.loads(done.stdout) if json_form and done.stdout else done.stdout
    return done.returncode, figures, done.stderr, list(server.requests)


def test_requests(server):
    code, f, err, asked = load(server, "-C", "3", "-n", "12", "--input-tokens", "20",
                               "--output-tokens", "5", model=None)
    check("closed loop", code == 0 and f["completed"] == 12 and f["failed"] == 0, err)
    check("the model that the server lists", f["model_id"] == "plain")
    check("tokens", (f["total_input_tokens"], f["total_output_tokens"], f["total_events"],
                     f["total_cached_tokens"]) == (240, 60, 60, 24), f)
    body = asked[0][3]
    check("what is asked", (asked[0][1], body["max_tokens"], body["stream"], body["ignore_eos"],
                            body["temperature"]) == ("/v1/completions", 5, True, True, 0), body)
    check("ids of the server's vocabulary", all(len(r[3]["prompt"]) == 20 and
          all(0 < t < 1000 for t in r[3]["prompt"]) for r in asked))
    check("prompts differ", len({json.dumps(r[3]["prompt"]) for r in asked}) == 12)
    check("streams at once", server.most_running <= 3, server.most_running)
    again = load(server, "-C", "1", "-n", "12", "--input-tokens", "20", "--output-tokens", "5")[3]
    check("the same seed asks the same",
          sorted(json.dumps(r[3]["prompt"]) for r in asked) == sorted(json.dumps(r[3]["prompt"]) for r in again))


def test_connections(server):
    server.connections = 0
    load(server, "-C", "2", "-n", "10", "--input-tokens", "4", "--output-tokens", "2")
    check("connections are kept", server.connections == 3, server.connections)
    for model in ("to the end", "closes when idle"):
        code, f, err, _ = load(server, "-C", "2", "-n", "10", "--input-tokens", "4",
                               "--output-tokens", "2", model=model)
        check(model, code == 0 and f["completed"] == 10, err)


def test_times(server):
    code, f, err, _ = load(server, "-C", "4", "-n", "12", "--input-tokens", "4", "--output-tokens",
                           "8", "--slo", "ttft:60000,tpot:60000", model="slow")
    # The server waits this long at least; how much longer it takes is the machine's.
    all_ms = f["duration"] * 1000
    check("TTFT", FIRST_MS <= f["median_ttft_ms"] < all_ms, f)
    check("TPOT", GAP_MS * 0.8 <= f["median_tpot_ms"] < all_ms / 7, f)
    check("ITL", 0 < f["mean_itl_ms"] and abs(f["mean_itl_ms"] - f["mean_tpot_ms"]) < 0.1, f)
    check("E2EL", abs(f["mean_e2el_ms"] - f["mean_ttft_ms"] - 7 * f["mean_tpot_ms"]) < 0.1, f)
    check("goodput", f["request_goodput"] == f["request_throughput"] > 0, f)
    f = load(server, "-n", "3", "--input-tokens", "4", "--output-tokens", "3", "--slo",
             f"ttft:{FIRST_MS / 2}", model="slow")[1]
    check("nothing is within limits that are too tight", f["request_goodput"] == 0, f)


def test_forms(server):
    text = file("text", "one two three \"four\"\n" * 30)
    code, f, err, asked = load(server, "--chat", "-n", "3", "--output-tokens", "4", "--input-tokens", "9")
    check("chat", code == 0 and f["completed"] == 3 and f["total_events"] == 12, f"{err} {f}")
    message = asked[0][3]["messages"][0]
    check("words", asked[0][1] == "/v1/chat/completions" and message["role"] == "user" and
          len(message["content"].split()) == 9, message)
    asked = load(server, "-n", "3", "--text", text, "--input-tokens", "5", "--output-tokens", "1")[3]
    check("pieces of a text", all(len(r[3]["prompt"]) == 20 for r in asked), asked)
    asked = load(server, "-n", "6", "--input-tokens", "30", "--shared-prefix", "20",
                 "--prefix-groups", "2", "--output-tokens", "1")[3]
    prefixes = {tuple(r[3]["prompt"][:20]) for r in asked}
    check("shared prefixes", len(prefixes) == 2 and len({tuple(r[3]["prompt"][20:]) for r in asked}) == 6)
    asked = load(server, "-n", "2", "--no-ignore-eos", "--temp", "0.5", "--output-tokens", "1")[3]
    check("EOS and temperature", "ignore_eos" not in asked[0][3] and asked[0][3]["temperature"] == 0.5)
    key = file("key", "secret\n")
    code = load(server, "-n", "2", "--output-tokens", "1", "--api-key-file", key, model="key")[0]
    check("a key", code == 0)
    _, table, _, _ = load(server, "-n", "2", "--output-tokens", "2", json_form=False)
    check("the table", "requests answered" in table and "(TTFT)" in table and "(ITL)" in table, table)


def test_arrivals(server):
    code, f, err, asked = load(server, "--rate", "100", "-n", "40", "--input-tokens", "4",
                               "--output-tokens", "2", model="slow")
    times = [r[0] - asked[0][0] for r in asked]
    check("Poisson", code == 0 and f["completed"] == 40 and times[-1] > 0.15, f"{err} {times}")
    f = load(server, "--rate", "1000", "-n", "8", "-C", "1", "--input-tokens", "4",
             "--output-tokens", "2", model="slow")[1]
    check("waiting for a stream counts", f["max_ttft_ms"] > 5 * (FIRST_MS + GAP_MS), f)
    code, f, err, _ = load(server, "-C", "2", "--duration", "0.5", "--input-tokens", "4",
                           "--output-tokens", "2", model="slow")
    check("duration", code == 0 and f["duration"] >= 0.5 and 0 < f["completed"] < 0.5e3 / FIRST_MS * 2 + 3, f)
    asked = load(server, "-n", "4", "--warmup", "3", "--input-tokens", "4", "--output-tokens", "1")[3]
    check("warm-up", len(asked) == 7 and len({tuple(r[3]["prompt"]) for r in asked}) == 7)


def test_replay(server):
    azure = file("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                 "2023-11-16 18:15:46.6,40,4\n2023-11-16 18:15:48.6,400,4\n2023-11-16 18:15:50.6,10,6\n")
    code, f, err, asked = load(server, "--replay", azure, "--speed", "10", "--scale", "0.5",
                               "--context", "100")
    lengths = [(len(r[3]["prompt"]), r[3]["max_tokens"]) for r in asked]
    check("CSV", code == 0 and lengths == [(20, 2), (5, 3)] and f["left_out"] == 1, f"{err} {lengths}")
    check("times of arrival", 0.35 < asked[1][0] - asked[0][0] < 0.8, asked[1][0] - asked[0][0])
    row = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": [%s]}\n'
    lines = file("mooncake.jsonl", row % (0, 600, "5, 6") + row % (10, 700, "5, 7") + row % (20, 30, "8"))
    code, f, err, asked = load(server, "--replay", lines)
    prompts = [r[3]["prompt"] for r in asked]
    check("JSON lines", code == 0 and [len(p) for p in prompts] == [600, 700, 30], err)
    check("blocks are shared", prompts[0][:512] == prompts[1][:512] and prompts[0][512:600] != prompts[1][512:600])
    lines = file("turns.jsonl", "".join(row % (i, 1100, f"0, {1 + i % 8}, {100 + i}") for i in range(32)))
    code, f, err, asked = load(server, "--replay", lines, "--sample", "2", "--scale", "0.01")
    second = [tuple(r[3]["prompt"][5:10]) for r in asked]
    check("a sample has whole conversations", code == 0 and 4 <= len(second) < 32 and
          all(second.count(s) == 4 for s in second), f"{err} {len(second)}")
    rows = file("rows.csv", "".join(f"{i / 1000},4,1\n" for i in range(64)))
    code, f, err, asked = load(server, "--replay", rows, "--sample", "4")
    check("without blocks a sample has rows", code == 0 and 4 <= len(asked) < 40, f"{err} {len(asked)}")


def test_failures(server):
    rows = [("refuse", "refused", "HTTP 429: the queue is full"),
            ("close", "broken", "without an answer"), ("cut", "broken", "within its answer"),
            ("not http", "unclear", "not HTTP"), ("no stream", "unclear", "finish_reason"),
            ("nonsense", "unclear", "not a JSON object"), ("error", "refused", "pages ran out"),
            ("no end", "unclear", "[DONE]")]
    for model, kind, message in rows:
        code, f, err, _ = load(server, "-n", "2", "-C", "2", "--input-tokens", "4",
                               "--output-tokens", "4", model=model)
        check(model, code == 1 and f["completed"] == 0 and f[kind] == 2 and message in err, f"{code} {f} {err}")
    code, f, err, _ = load(server, "-n", "4", "--output-tokens", "2", "--input-tokens", "4", model="half")
    check("half", code == 1 and f["completed"] == 2 and f["failed"] == 2 and "2 of 4 requests failed" in err, f"{f} {err}")
    code, f, err, _ = load(server, "-n", "1", "--timeout", "0.3", "--output-tokens", "2", model="silent")
    check("silent", code == 1 and f["timeouts"] == 1 and "nothing came for 0.3 seconds" in err, f"{f} {err}")
    code, f, err, _ = load(server, "-n", "1", "--output-tokens", "4", "--input-tokens", "4", model="endless")
    check("endless", code == 1 and f["unclear"] == 1 and "4 tokens were asked for" in err, f"{f} {err}")
    f = load(server, "-n", "2", "--output-tokens", "3", "--input-tokens", "4", model="no usage")[1]
    check("without usage", (f["total_input_tokens"], f["total_output_tokens"]) == (8, 6), f)
    code, f, err, _ = load(server, "--warmup", "1", "--output-tokens", "1", model="refuse")
    check("a warm-up that fails", code == 1 and "no request of the warm-up" in err, err)


def test_usage(server):
    for arguments, message in ((["--url", "https://a"], "only http"), (["--url", "a:1"], "http://HOST"),
                               (["--url", "http://127.0.0.1:1"], "no server answers"),
                               (["--slo", "x:1"], "ttft:200"),
                               (["--shared-prefix", "2000"], "--shared-prefix 2000 is longer"),
                               (["--replay", file("empty", "")], "no requests"),
                               (["--text", file("nothing", "")], "empty"),
                               (["--replay", file("one", "1,1,1\n"), "--skip", "5"], "--skip leaves out 5"),
                               (["--vocab-size", "63"], "at least 64 ids are needed"),
                               (["--sample", "0"], "--sample")):
        done = subprocess.run([QUIPU, "load", "--url", server.url, *arguments], capture_output=True,
                              text=True, timeout=60)
        check(arguments, done.returncode in (1, 2) and message in done.stderr, done.stderr)


def interrupted(server, *arguments):
    """(exit status, standard output, standard error) of a run that is interrupted after its second request, or after its first
    if the first has no answer; a stream that asks again has an answer."""
    first = 1 if "silent" in arguments else 2
    server.requests.clear()
    run = subprocess.Popen([QUIPU, "load", "--url", server.url, *arguments],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(server.requests) < first and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    return run.returncode, out, err


def test_interrupt(server):
    code, out, err = interrupted(server, "--duration", "600", "--input-tokens", "4", "--output-tokens", "2", "--model", "slow")
    check("an interrupt prints what was done", code == 130 and "requests answered" in out, f"{code} {err}")
    code, out, err = interrupted(server, "--json", "--model", "silent")
    check("before the first answer too, as JSON", code == 130 and json.loads(out or "{}").get("completed") == 0, f"{code} {out} {err}")


def main():
    server = FakeServer()
    for test in (test_requests, test_connections, test_times, test_forms, test_arrivals, test_replay,
                 test_failures, test_usage, test_interrupt):
        test(server)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
