"""The Python programs of README.md and doc/LIBRARY.md run as printed."""

import re
import subprocess
import sys
from pathlib import Path

from test_quipu import TEXT

ROOT = Path(__file__).resolve().parents[2]


def run_program(page, monkeypatch, capsys, tmp_path, change=("", "")):
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"^    import quipu\n(?:(?:    .*)?\n)+", text, re.M)
    program = re.sub(r"^    ", "", found[0], flags=re.M)
    (tmp_path / "model.gguf").symlink_to(TEXT)
    monkeypatch.chdir(tmp_path)
    exec(program.replace(*change), {})
    return program, capsys.readouterr().out


def test_readme(monkeypatch, capsys, tmp_path):
    # The small model never ends an answer by itself, and its context is short.
    program, printed = run_program("README.md", monkeypatch, capsys, tmp_path,
                                   ('"Name the four seasons."}],',
                                    '"Name the four seasons."}], max_tokens=8,'))
    assert "model.chat" in program and "trace.table" in program
    assert "linear" in printed and "attn_norm" in printed


def test_library(monkeypatch, capsys, tmp_path):
    program, printed = run_program("doc/LIBRARY.md", monkeypatch, capsys, tmp_path)
    assert "model.step" in program
    assert printed.count("\n") == 3 and "The capital of France is" in printed


def test_example_of_answers(tmp_path):
    program = [sys.executable, ROOT / "examples" / "answers.py", Path(TEXT).parent / "llama-text"]
    found = subprocess.run(program, input="the cat\n\na dog\n", text=True, capture_output=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(" tokens, ") == 2 and "the cat\n" in found.stdout and "a dog\n" in found.stdout
