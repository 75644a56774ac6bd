"""The Python program of README.md runs as printed."""

import re
from pathlib import Path

from test_quipu import TEXT

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme(monkeypatch, capsys, tmp_path):
    found = re.search(r"^    import quipu\n(?:(?:    .*)?\n)+", README.read_text(encoding="utf-8"), re.M)
    program = re.sub(r"^    ", "", found[0], flags=re.M)
    assert "model.chat" in program and "trace.table" in program
    (tmp_path / "model.gguf").symlink_to(TEXT)
    monkeypatch.chdir(tmp_path)
    # The small model never ends an answer by itself, and its context is short.
    exec(program.replace('"Name the four seasons."}]', '"Name the four seasons."}], max_tokens=8'), {})
    printed = capsys.readouterr().out
    assert "linear" in printed and "attn_norm" in printed
