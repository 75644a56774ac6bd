#!/usr/bin/env python3
"""lm-eval as a client: log-likelihoods and texts that it gets from quipu serve are those that it gets from
transformers with the same model. Ends with "N passed, N failed"; "skipped: REASON" and 77 without the packages.

    python3 -m venv lm && lm/bin/pip install "lm_eval[api,hf]"
    QUIPU_BINARY=build/quipu lm/bin/python tests/test_lm_eval.py

The tasks are made here: questions with four endings, texts whose perplexity is wanted, and beginnings that go on until a
stop text. lm-eval's model local-completions asks with "echo" and "logprobs", and tokenizes by the server.
"""
import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

from server_process import Server

MODEL = Path(__file__).resolve().parent / "golden" / "models" / "llama-text"
WORDS = "once upon a time there was a little girl who loved to play in the big park with her dog".split()
TASK = """task: quipu_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
doc_to_target: {target}
{more}
"""
KINDS = {
    "endings": ("multiple_choice", "{{question}}", "answer", "doc_to_choice: choices\nmetric_list: [{metric: acc}]"),
    "rolling": ("loglikelihood_rolling", "", "question", "metric_list: [{metric: word_perplexity}]"),
    "texts": ("generate_until", "{{question}}", "question", "metric_list: [{metric: exact_match}]\n"
              "generation_kwargs: {until: [\"!\", \".\"], max_gen_toks: 24, do_sample: false, temperature: 0}"),
}


def make_tasks(folder):
    rows = [{"question": " ".join(WORDS[i:i + 5]), "answer": i % 4,
             "choices": [" ".join(WORDS[(i + k + j) % len(WORDS)] for j in range(k + 1)) for k in range(4)]}
            for i in range(10)]
    data = Path(folder) / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, (kind, text, target, more) in KINDS.items():
        (Path(folder) / f"{name}.yaml").write_text(
            TASK.format(name=name, data=data, kind=kind, text=text, target=target, more=more))


def ask(folder, kind, **arguments):
    """{(task, what is asked): the answers} of an lm-eval's model."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    result = lm_eval.simple_evaluate(
        model=kind, model_args=arguments, tasks=["quipu_" + name for name in KINDS], log_samples=True, bootstrap_iters=0,
        task_manager=TaskManager(include_path=folder, include_defaults=False), device="cpu", batch_size=1)
    found = {}
    for task, samples in result["samples"].items():
        for sample in samples:
            asked = sample["arguments"]
            for i, (one, answer) in enumerate(zip(asked.values() if isinstance(asked, dict) else asked, sample["resps"])):
                found[task, json.dumps(one, sort_keys=True), i] = answer[0]
    return found


def agree(task, ours, theirs):
    if task == "quipu_texts":
        # decoders differ in how many U+FFFD stand for bytes that are no UTF-8
        return re.sub("\ufffd+", "\ufffd", ours.strip()) == re.sub("\ufffd+", "\ufffd", theirs.strip())
    ours, theirs = ([x if isinstance(x, (list, tuple)) else (x,) for x in (ours, theirs)])
    value, expected = float(ours[0]), float(theirs[0])
    return abs(value - expected) <= 1e-3 * max(1, abs(expected)) and [str(x) for x in ours[1:]] == [str(x) for x in theirs[1:]]


def main():
    missing = [name for name in ("lm_eval", "torch", "transformers", "accelerate", "tenacity") if not importlib.util.find_spec(name)]
    if missing:
        print("skipped: no package " + ", ".join(missing))
        return 77
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        make_tasks(folder)
        with Server("-c", "512", model=MODEL) as s:
            ours = ask(folder, "local-completions", base_url=f"http://127.0.0.1:{s.port}/v1/completions", model="served",
                       tokenizer_backend="remote", num_concurrent=1, max_length=512)
        theirs = ask(folder, "hf", pretrained=str(MODEL), dtype="float32", max_length=512)
    for key, answer in ours.items():
        if not agree(key[0], answer, theirs[key]):
            failed += 1
            print(f"failed: {key}: {answer!r}, transformers: {theirs[key]!r}")
    print(f"{len(ours) - failed} passed, {failed + (not ours)} failed")
    return 1 if failed or not ours else 0


sys.exit(main())
