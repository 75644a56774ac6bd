#!/usr/bin/env python3
"""Measures the effect of --activations: fifty questions to a small model, compared with transformers in float32.

    fifty_questions.py MODEL.gguf [--quipu PATH] [--choices 8,16,float] [--against CHOICE] [--show]

Needs torch, transformers, gguf and accelerate, unless --against compares with quipu's own answers with
another choice. Each question is put through the model's chat template; both sides make up to 20 tokens,
always the likeliest. Prints a row for each choice: answers that are the same, first tokens that are the
same, and tokens before the first difference. --show prints the answers.
"""
import argparse
import json
import subprocess
from pathlib import Path

TOKENS = 20


def quipu_answer(arguments, question, activations):
    done = subprocess.run(
        [arguments.quipu, "run", "-m", arguments.model, "-p", question, "--activations", activations,
         "-n", str(TOKENS), "--temp", "0", "--repetition-penalty", "1", "--device", "cpu", "--json"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def reference_answers(arguments, prompts):
    import torch
    from transformers import AutoModelForCausalLM

    path = Path(arguments.model)
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name,
                                                 dtype=torch.float32).eval()
    stop = model.generation_config.eos_token_id or model.config.eos_token_id
    answers = []
    for ids in prompts:
        x = torch.tensor([ids])
        with torch.no_grad():
            made = model.generate(x, attention_mask=torch.ones_like(x), do_sample=False,
                                  max_new_tokens=TOKENS, eos_token_id=stop, pad_token_id=stop)
        answer = made[0, len(ids):].tolist()
        answers.append(answer[:-1] if answer and answer[-1] == stop else answer)
    return answers


def same_tokens(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--quipu", default="build/quipu")
    parser.add_argument("--choices", default="8,16,float", type=lambda text: text.split(","))
    parser.add_argument("--against", metavar="CHOICE")
    parser.add_argument("--show", action="store_true")
    arguments = parser.parse_args()
    questions = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    found = {choice: [quipu_answer(arguments, q, choice) for q in questions]
             for choice in arguments.choices}
    if arguments.against:
        expected = [quipu_answer(arguments, q, arguments.against)["tokens"] for q in questions]
    else:
        prompts = [a["prompt_tokens"] for a in found[arguments.choices[0]]]
        expected = reference_answers(arguments, prompts)
    print("| activations | same answer | same first token | tokens before the first difference |")
    print("|---|---|---|---|")
    for choice, answers in found.items():
        pairs = [(a["tokens"], e) for a, e in zip(answers, expected)]
        print(f"| {choice} | {sum(a == e for a, e in pairs)} of {len(pairs)} "
              f"| {sum(a[:1] == e[:1] for a, e in pairs)} "
              f"| {sum(same_tokens(a, e) for a, e in pairs)} of {sum(len(e) for _, e in pairs)} |")
    for i, question in enumerate(questions if arguments.show else ()):
        print(f"\n{question}")
        for choice, answers in found.items():
            print(f"  {choice:>5}  {answers[i]['text']!r}")


if __name__ == "__main__":
    main()
