"""The package's types: mypy --strict and pyright accept them, and find what a program does wrong."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quipu

PACKAGE = Path(quipu.__file__).resolve().parent

PROGRAM = """
import asyncio

import numpy as np

import quipu


def use(path: str) -> None:
    with quipu.Model(path, threads=2, kv_type="F16", schedule={"assignment": "dag"}) as model:
        for piece in model.generate("a", temperature=0.5, stop="b", max_tokens=3):
            print(piece.upper())
        answer = model.chat([{"role": "user", "content": "a"}], seed=1, schema={"type": "object"}, tools=[])
        print(answer.text().upper(), answer.tokens[0] + 1, answer.logprobs)
        calls: list[quipu.ToolCall] = [call for call in answer.tool_calls if not call.broken]
        print(answer.thinking.upper(), [call.name.upper() + call.arguments for call in calls])
        row = model.session().eval(np.array([1, 2]))
        if row is not None:
            print(row.shape)
        batch = [quipu.Sequence(model.session(), [1], sampler=model.sampler(top_k=1))]
        print(model.step(batch)[0][0] + 1, model.info.vocab_size + 1, quipu.__version__.upper())
        print(quipu.plan(path, tokens=8).steps[0].name)
"""

ASYNCIO = """

async def read(model: quipu.Model) -> str:
    async for piece in model.generate("a"):
        print(piece.upper())
    return await model.generate("a")


asyncio.run(read(quipu.Model("a")))
"""

WRONG = """
import quipu

model = quipu.Model("a", thread=1)
model = quipu.Model("a", threads="one")
model.generate("a", temprature=1)
model.generate("a", temperature="hot")
model.generate("a", stop=3)
model.generate("a").text() + 1
model.session().eval("a")
model.chat([], tools=[]).tool_calls[0].name = "b"
model.chat([], tools=["find"])
"""


def check(command, tmp_path):
    """The lines of the wrong program that are found; all else must be accepted."""
    (tmp_path / "program.py").write_text(PROGRAM + ASYNCIO)
    (tmp_path / "wrong.py").write_text(WRONG)
    printed = subprocess.run([*command, str(PACKAGE), "program.py", "wrong.py"], cwd=tmp_path, text=True,
                             capture_output=True).stdout
    errors = re.findall(r"(\S+\.py):(\d+)(?::\d+)?(?: -|:) error", printed)
    assert [path for path, _ in errors if not path.endswith("wrong.py")] == [], printed
    assert {int(line) for _, line in errors} == set(range(4, 13)), printed


def test_mypy(tmp_path, monkeypatch):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: what it says of the types was not checked")
    import mypy.version

    monkeypatch.setenv("MYPYPATH", str(PACKAGE.parent))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    if tuple(map(int, mypy.version.__version__.split(".")[:2])) < (1, 7):
        command.append("--enable-incomplete-feature=Unpack")
    check(command, tmp_path)


def test_pyright(tmp_path):
    pyright = shutil.which("pyright") or shutil.which("basedpyright")  # which PyPI has whole
    if pyright is None:
        pytest.skip("pyright is not installed: what it says of the types was not checked")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PACKAGE.parent)],
                                                             "typeCheckingMode": "standard"}))
    check([pyright, "--pythonpath", sys.executable], tmp_path)


def test_options_are_those_of_the_header():
    """Every member of the library's options is an argument, or is named here."""
    from quipu._native import ffi
    from quipu.options import ModelOptions, PlanOptions, ScheduleOptions

    not_in_python = {"size", "model", "kernels", "n_kernels", "cuda_kernels", "n_cuda_kernels", "n_adapters", "log_context", "tensor_context",
                     "progress", "progress_context"}
    for struct, options in (("qp_engine_options", ModelOptions), ("qp_plan_options", PlanOptions),
                            ("qp_schedule_options", ScheduleOptions)):
        members = {name for name, _ in ffi.typeof(struct).fields} - not_in_python
        assert members == set(options.__annotations__), struct
