#!/usr/bin/env python3
"""The first pages, doc/START-*.md: each command runs, on a tiny model, and prints what the page shows. After "$" comes a command,
which may go on to the END of a text; below it beginnings of lines of its output, where "..." stands for anything."""
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from cli_process import HOME, MODELS, QUIPU, TEMPORARY, check, run_parts

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "doc").glob("START-*.md"))
BUILD = Path(os.environ.get("QUIPU_BUILD") or Path(QUIPU).parent)


def session_of(page):
    """[(command, lines of output)] of the page's session."""
    block = re.search(r"^    \$ .*\n(?:(?:    .*)?\n)*?(?=^\S)", page.read_text(encoding="utf-8"), re.M)[0]
    session, end = [], None
    for line in (line[4:] for line in block.rstrip("\n").split("\n")):
        if end:
            session[-1][0] += "\n" + line
            end = None if line == end else end
        elif line.startswith("$ "):
            session.append([line[2:], []])
            heredoc = re.search(r"<<'(\w+)'", line)
            end = heredoc[1] if heredoc else None
        elif line:
            session[-1][1].append(line)
    return session


def folder_of(page):
    """A folder with the model, and with programs called quipu and pkg-config."""
    folder = Path(TEMPORARY, page.stem)
    (folder / "bin").mkdir(parents=True)
    shutil.copy(MODELS / "llama-text.gguf", folder / "model.gguf")
    (folder / "bin/quipu").symlink_to(QUIPU)
    library = BUILD / "tests"
    (folder / "bin/pkg-config").write_text(f"#!/bin/sh\necho -I{ROOT}/include -L{library} -lquipu_tested -Wl,-rpath,{library}\n")
    (folder / "bin/pkg-config").chmod(0o755)
    return folder


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def run_page(page):
    session, folder, port = session_of(page), folder_of(page), free_port()
    check(3 <= len(session) <= 10, f"{page.name}: {len(session)} commands")
    script = "".join(f"{command}\necho \"@@@ $?\"\n" for command, _ in session).replace("8321", port)
    home = HOME | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "QUIPU_N_PREDICT": "24"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=home, capture_output=True, errors="replace", timeout=300, check=False)
    parts = re.split(r"@@@ (\d+)\n", done.stdout)
    check(len(parts) == 2 * len(session) + 1, f"{page.name}: {done.stderr[-500:]}")
    for i, (command, expected) in enumerate(session):
        out, status = parts[2 * i:2 * i + 2] if 2 * i + 1 < len(parts) else ("", "none")
        check(status == "0", f"{page.name}: {command[:60]}: status {status}: {done.stderr[-500:]}")
        check(bool(out.strip()) == bool(expected), f"{page.name}: {command[:60]}: prints {out[:200]!r}")
        for line in expected:
            wanted = line.removesuffix("...").rstrip()
            check(any(found.startswith(wanted) for found in out.splitlines()), f"{page.name}: {command[:60]}: no {wanted!r} in {out[:300]!r}")


def pages():
    check(len(PAGES) == 5, f"{len(PAGES)} first pages")
    for page in PAGES:
        run_page(page)


sys.exit(run_parts(pages))
