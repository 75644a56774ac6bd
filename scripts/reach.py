#!/usr/bin/env python3
"""Which suites can reach a source: reach.py [--within SECONDS TREE] FILE...

Prints a suite a line with its nearness. With --within only those that run in so many seconds on one core,
nearest first, by what CTest kept of earlier runs in TREE; the others are named on standard error.

A suite reaches the folders whose headers it includes, and what the table of scripts/layers lets those
include; suites that are scripts drive the program, and SCRIPTS says which folders they are about.
Nearness says how directly: 0 by name, 1 the same folder, 2 the same layer, 3 through other layers.
`./dev test --changed` runs the near ones, `./dev mutate` all of them, in this order.
"""
import importlib.machinery
import importlib.util
import re
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FAR = 3

# A suite that is a script -> the folders of src/ that it is about.
SCRIPTS = {
    "test_cli_errors": "cli", "test_cli_process": "cli engine", "test_cli_terminal": "cli", "test_delays": "vm",
    "test_exchange": "comm vm", "test_exchange_cuda": "comm vm/cuda", "test_forms": "grammar server engine cli",
    "test_hub": "hub cli", "test_power_loss": "base file hub cli", "test_killed": "base file hub cli", "test_install": "cli", "test_instruction_cuda": "schedule vm/megakernel",
    "test_launches": "vm/cuda", "test_load_server": "load server", "test_fleet_simulation": "load", "test_page": "server/page", "test_perfetto": "inspect schedule",
    "test_ranks_cli": "comm vm cli", "test_ranks_gpu": "comm vm/cuda", "test_schemas": "grammar",
    "test_models": "router server", "test_fleet": "server", "test_ray_serve": "", "test_server": "server engine", "test_server_http": "server", "test_soak": "server engine",
    "test_timeline_page": "inspect", "test_documents": "cli", "test_dev": "", "test_layers": "", "test_examples": "", "test_start": "",
    "test_endings": "cli base", "test_model_refusals": "model", "test_int_weights": "model", "test_imatrix": "convert engine",
    "test_lora": "model engine", "test_lora_server": "server engine", "test_thinking": "engine server", "test_channels": "engine server",
    "test_tool_loop": "server template", "test_raw_prompts": "server", "test_responses": "server", "test_server_access": "server",
    "test_server_fields": "server", "test_lm_eval": "server", "test_differential": "grammar template text model",
}

# What is not code of src/ -> suites about it.
OTHERS = [
    (r"doc/|.*\.md$", ["test_documents"]),
    (r"scripts/|dev$|\.ci/", ["test_dev", "test_layers"]),
    (r"fuzz/", ["fuzz_"]),
    (r"python/|packaging/|include/", ["test_install"]),
    (r"src/server/page/", ["test_page"]),
]


def load_script(name):
    """A script of scripts/ without the suffix .py, as a module."""
    loader = importlib.machinery.SourceFileLoader("quipu_" + name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


@lru_cache(None)
def layers():
    """A layer -> the layers that its files reach, itself included."""
    table = load_script("layers").MAY_INCLUDE
    reached = {}

    def close(layer):
        if layer not in reached:
            reached[layer] = {layer}
            for target in table.get(layer, "").split():
                reached[layer] |= close(target.split("/")[0])
        return reached[layer]

    for layer in table:
        close(layer)
    return reached


@lru_cache(None)
def included(path):
    """The headers of src/ that a file of tests/ includes, also through headers of tests/."""
    found = set()
    for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
        beside = path.parent / target
        if beside.exists():
            found |= included(beside)
        elif (ROOT / "src" / target).exists():
            found.add(target)
    return frozenset(found)


@lru_cache(None)
def suites():
    """A suite's name -> (headers that it includes, or None for a script; folders that it is about)."""
    table = {}
    for path in sorted((ROOT / "tests").glob("test_*")):
        if path.suffix == ".c":
            headers = included(path)
            table[path.stem] = headers, {str(Path(header).parent) for header in headers}
        elif path.suffix in (".py", ".sh"):
            table[path.stem] = None, set(SCRIPTS[path.stem].split())
    for path in sorted((ROOT / "fuzz").glob("fuzz_*.c")):
        headers = included(path)
        table[path.stem] = headers, {str(Path(header).parent) for header in headers}
    return table


def nearness(suite, source):
    """How near a suite is to src/SOURCE: 0 to FAR, or None if it cannot reach it."""
    headers, folders = suites()[suite]
    folder, stem = str(Path(source).parent), Path(source).stem
    words = suite.split("_", 1)[-1]
    if words == stem or any(Path(header).with_suffix("") == Path(source).with_suffix("") for header in headers or ()):
        return 0
    if folder in folders or folder.rsplit("/", 1)[-1] == words:
        return 1
    layer = folder.split("/")[0]
    tops = {name.split("/")[0] for name in folders}
    if layer in tops:
        return 2
    if headers is None or any(layer in layers().get(top, ()) for top in tops):
        return FAR
    return None


def reaching(path):
    """(nearness, suite) of the suites for a changed file of the project, nearest first."""
    path = str(path)
    if path.startswith("src/") and Path(path).suffix in (".c", ".h", ".def", ".inc"):
        found = ((nearness(suite, path[4:]), suite) for suite in suites())
        return sorted(pair for pair in found if pair[0] is not None)
    if re.fullmatch(r"(tests/test_|fuzz/fuzz_)\w+\.\w+", path):
        return [(0, Path(path).stem)]
    if path.startswith("tests/") and path.endswith(".h"):
        return [(0, source.stem) for source in (ROOT / "tests").glob("test_*.c")
                if Path(path).name in source.read_text(encoding="utf-8")]
    return [(0, name) for pattern, names in OTHERS if re.match(pattern, path)
            for name in suites() if any(name.startswith(start) for start in names)]


def seconds_of_suites(tree):
    """What each suite took in earlier runs of CTest."""
    path = Path(tree) / "Testing/Temporary/CTestCostData.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = (line.split() for line in lines)
    return {row[0]: float(row[2]) for row in rows if len(row) == 3}


def within(order, seconds, tree):
    """The suites of [(nearness, suite)] that fit; those that are far fit only where nothing is nearer."""
    took, spent, chosen = seconds_of_suites(tree), 0, []
    nearest = order[0][0] if order else 0
    for near, suite in order:
        cost = took.get(suite, 5)
        if (near < FAR or nearest == FAR) and (spent + cost <= seconds or not chosen):
            spent += cost
            chosen.append((near, suite))
    return chosen


def main():
    words, nearest = sys.argv[1:], {}
    limit = words[1:3] if words[:1] == ["--within"] else None
    for path in words[3:] if limit else words:
        for near, suite in reaching(path):
            nearest[suite] = min(near, nearest.get(suite, FAR))
    order = sorted((near, suite) for suite, near in nearest.items())
    chosen = within(order, float(limit[0]), limit[1]) if limit else order
    left = [suite for pair in order if pair not in chosen for suite in pair[1:]]
    if left:
        print(f"left to ./dev test: {' '.join(left)}", file=sys.stderr)
    for near, suite in chosen:
        print(near, suite)


if __name__ == "__main__":
    main()
