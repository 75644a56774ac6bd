#!/usr/bin/env python3
"""The documents: links and their anchors lead somewhere, README.md names every page, sources and functions
that a page names exist, each option of a command that a page shows is one of that command, and commands
whose output is the same everywhere print what four pages show."""
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from cli_process import QUIPU, check, quipu, run_parts

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "doc").glob("*.md"))
CODE = re.compile(r"```.*?```|`[^`]*`", re.S)
COMMAND = re.compile(r"quipu ((?:ops )?[a-z]+)\b(.*)", re.S)


@cache
def anchors(page):
    """As GitHub makes them of headings."""
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} (.*)$", page.read_text(encoding="utf-8"), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
    return found


def links_of(page):
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"\w+:", link)]


def links():
    for page in PAGES:
        for link in links_of(page):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            check(target.exists(), f"{page.name}: {link}: there is no such file")
            if anchor and target.suffix == ".md" and target.exists():
                check(anchor in anchors(target), f"{page.name}: {link}: there is no such heading")
    named = {link.partition("#")[0] for link in links_of(ROOT / "README.md")}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        check(name in named or name == "README.md", f"README.md has no link to {name}")


def names():
    """Headers and GPU sources, and functions of the library."""
    sources = [str(path.relative_to(ROOT)) for folder in ("bench", "examples", "include", "src", "tests")
               for path in (ROOT / folder).rglob("*")]
    headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").glob("*.h"))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in set(re.findall(r"`([\w./-]+\.(?:cuh?|def|h|inc))`", text)):
            known = "NAME" in name or any(f"/{source}".endswith(f"/{name}") for source in sources)
            check(known, f"{page.name}: there is no source {name}")
        for name in set(re.findall(r"\bqp_\w+", text)):
            check(re.search(rf"\b{name}\b", headers), f"{page.name}: quipu.h has no {name}")


def commands_of(page):
    """Commands in code: what stands in `...`, and indented lines that begin with quipu."""
    text = page.read_text(encoding="utf-8")
    spans = [" ".join(span.split()) for span in re.findall(r"`(quipu [^`]*)`", text)]
    lines = re.findall(r"^ {4,}(?:\$ )?(quipu .*(?:\n {8,}--.*)*)", text, re.M)
    return [re.split(r" \| | && | > |\s#", command)[0] for command in spans + lines]


@cache
def help_of(verb):
    done = subprocess.run([QUIPU, *verb.split(), "--help-all"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def options():
    n = 0
    for page in PAGES:
        for command in commands_of(page):
            match = COMMAND.match(command)
            if not match or help_of(match[1]) is None:
                check(not match or match[1] in ("ops", "version"), f"{page.name}: no command: {command}")
                continue
            known = help_of(match[1]).replace("--[no-]", "--")
            for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", match[2]):
                n += 1
                check(re.search(re.escape(option) + r"(?![\w-])", known) or option in ("--help", "--help-all"),
                      f"{page.name}: quipu {match[1]} has no {option}: {command}")
    check(n > 200, f"only {n} options were found in the documents")


def experiments():
    """The table of what was tried: each row is whole, once, and has a verdict that the page explains."""
    page = (ROOT / "doc/EXPERIMENTS.md").read_text(encoding="utf-8")
    named = re.search(r"\| verdict \| meaning \|\n.*?\n\n", page, re.S)[0]
    verdicts = {name for row in re.findall(r"^\| ([^|]+) \|", named, re.M) for name in row.split(", ")} - {"verdict"}
    head, *rows = (ROOT / "doc/experiments.tsv").read_text(encoding="utf-8").splitlines()
    check(head.split("\t") == ["part", "subject", "verdict", "tried", "expected", "measured", "why"], head)
    seen = set()
    for number, row in enumerate(rows, 2):
        cells = row.split("\t")
        check(len(cells) == 7 and all(cells[i] for i in (0, 3)), f"experiments.tsv, line {number}: seven cells: {row[:80]}")
        check(cells[2] in verdicts, f"experiments.tsv, line {number}: no verdict {cells[2]!r} is explained")
        check(row not in seen, f"experiments.tsv, line {number}: it is there twice")
        check(not any(cell != cell.strip() for cell in cells), f"experiments.tsv, line {number}: blanks around a cell")
        seen.add(row)
    check(len(rows) > 500, f"only {len(rows)} experiments were found")


def outputs():
    """After "$ quipu ...": beginnings of lines; "..." stands for what is left out."""
    n = 0
    for page in [ROOT / name for name in ("README.md", "doc/FORWARD-PASS.md", "doc/PLANS.md", "doc/TRACES.md",
                                          "doc/SCHEDULES.md")]:
        for command, shown in re.findall(r"^    \$ (quipu .*)\n((?: {4}(?!\$ ).*\n)*)", page.read_text(encoding="utf-8"), re.M):
            if not re.match(r"quipu (info|shapes|plan|schedule|logits|run|trace [^\n]*--describe)", command) or re.search(r"\||--schedule|--save|--load|--compare|--tune|--measure", command):
                continue
            status, out, error = quipu(*command.split()[1:])
            check(status == 0, f"{page.name}: {command}: {error}")
            for line in shown.splitlines():
                n += 1
                text = line[4:].removesuffix("...").rstrip()
                check(any(found.startswith(text) for found in out.splitlines()), f"{page.name}: {command} does not print: {text}")
    check(n > 40, f"only {n} lines of output were found in the documents")


sys.exit(run_parts(links, names, options, experiments, outputs))
