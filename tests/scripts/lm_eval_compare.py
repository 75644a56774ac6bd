#!/usr/bin/env python3
"""lm-eval against quipu serve: its log-likelihoods of a small task are those of qp_eval().

    python3 -m venv lm && lm/bin/pip install "lm_eval[api]"
    ninja -C build quipu quipu_shared
    QUIPU_BINARY=build/quipu QUIPU_LIBRARY=build/libquipu.so lm/bin/python tests/scripts/lm_eval_compare.py [MODEL]

The task is made here: each question has four endings. lm-eval asks by its model local-completions and
tokenizes by the server. Ends with "N passed, N failed".
"""
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
QUIPU = os.environ.get("QUIPU_BINARY", "build/quipu")
MODEL = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "tests" / "golden" / "models" / "llama-text.gguf")
WORDS = "the cat sat on a mat and looked at the small red house by the long river".split()
TASK = """task: quipu_endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


def make_task(folder):
    rows = [{"question": " ".join(WORDS[i:i + 5]), "answer": i % 4,
             "choices": [" ".join(WORDS[(i + k + j) % len(WORDS)] for j in range(k + 1)) for k in range(4)]}
            for i in range(10)]
    data = Path(folder) / "endings.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (Path(folder) / "endings.yaml").write_text(TASK.format(data=data))


def start_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([QUIPU, "serve", "-m", MODEL, "--port", str(port), "--device", "cpu"],
                               stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if urllib.request.urlopen(url + "/health").status == 200:
                return process, url
        except OSError:
            time.sleep(0.1)
    sys.exit("the server is not ready")


def ask_lm_eval(folder, url):
    """[(context, ending, log-likelihood, whether greedy)] as lm-eval has them."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    result = lm_eval.simple_evaluate(
        model="local-completions", tasks=["quipu_endings"], log_samples=True, bootstrap_iters=0,
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        model_args={"base_url": url + "/v1/completions", "model": "served", "tokenizer_backend": "remote",
                    "num_concurrent": 1})
    found = []
    for sample in result["samples"]["quipu_endings"]:
        arguments = sample["arguments"]
        pairs = arguments.values() if isinstance(arguments, dict) else arguments
        for pair, answer in zip(pairs, sample["resps"]):
            context, ending = (pair["arg_0"], pair["arg_1"]) if isinstance(pair, dict) else pair
            found.append((context, ending, float(answer[0][0]), str(answer[0][1]) == "True"))
    return found


def log_likelihood(session, model, context, ending):
    """The same by qp_eval(): log-probabilities of the tokens after the context's."""
    ids = model.tokenize(context + ending, bos=False)
    start = len(model.tokenize(context, bos=False))
    session.truncate(0)
    rows = session.eval(ids, every_row=True)
    total, greedy = 0.0, True
    for i in range(start, len(ids)):
        row = [float(v) for v in rows[i - 1]]
        most = max(row)
        total += row[ids[i]] - most - math.log(sum(math.exp(v - most) for v in row))
        greedy = greedy and row[ids[i]] == most
    return total, greedy


def main():
    import quipu
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        make_task(folder)
        process, url = start_server()
        try:
            found = ask_lm_eval(folder, url)
        finally:
            process.terminate()
            process.wait(60)
    model = quipu.Model(MODEL, max_outputs=64)
    session, worst = model.session(), 0.0
    for context, ending, value, greedy in found:
        expected, most = log_likelihood(session, model, context, ending)
        worst = max(worst, abs(value - expected))
        if abs(value - expected) > 1e-4 * max(1, abs(expected)) or greedy != most:
            failed += 1
            print(f"failed: {context!r} {ending!r}: {value} {greedy}, qp_eval: {expected} {most}")
    print(f"largest difference {worst:.2e}")
    print(f"{len(found) - failed} passed, {failed + (not found)} failed")
    return 1 if failed or not found else 0


sys.exit(main())
