"""The forward pass as data, before anything runs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quipu._native import check, ffi, known_option, lib, path_bytes, set_option, sized, take_text
from quipu.options import PlanOptions

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack


@dataclass(frozen=True)
class Tensor:
    """A tensor of the forward pass: float values, indices or a part of the KV cache."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    symbols: tuple[str, ...]
    """The shape in symbols, such as "n_tokens"."""
    bytes: int


@dataclass(frozen=True)
class Step:
    """A step of the forward pass."""

    name: str
    layer: int
    """-1: of no layer."""
    operators: tuple[str, ...]
    cells: dict[str, str]
    """What becomes of each tensor that lives: + created, o kept, m mapped from the host, r read,
    w written, x destroyed."""


@dataclass(frozen=True)
class Plan:
    """A forward pass: steps, tensors, the exact bytes of every part and the context."""

    steps: tuple[Step, ...]
    tensors: tuple[Tensor, ...]
    bytes: dict[str, int]
    context: int
    largest_context: int
    """Of what fits into the memory."""
    text: str
    """A row a step, a column a tensor."""

    def __str__(self) -> str:
        return self.text


def plan(model: str | os.PathLike[str], **options: Unpack[PlanOptions]) -> Plan:
    """The forward pass of a model, whose weights are not read: a directory with config.json or the
    name of a synthetic model will do. Options are those of qp_plan_options in quipu.h: tokens,
    context, sessions, page_size, kv_type, memory, act_type."""
    native = sized("qp_plan_options")
    keep: list[Any] = []
    for name, value in options.items():
        known_option("plan", name, PlanOptions.__annotations__)
        set_option(native, keep, "plan", name, value)
    set_option(native, keep, "plan", "model", model if isinstance(model, str) else os.fsdecode(path_bytes(model, "a model")))
    texts = []
    for as_json in (True, False):
        error, out = ffi.new("qp_error *"), ffi.new("char **")
        check(lib.qp_describe_plan(native, as_json, out, error), error)
        texts.append(take_text(out[0]).decode("utf-8"))
    found = json.loads(texts[0])
    return Plan(
        steps=tuple(Step(s["step"], s["layer"], tuple(s["operators"]), s["cells"])
                    for s in found["steps"]),
        tensors=tuple(Tensor(t["name"], t["kind"], t["dtype"], tuple(t["shape"]),
                             tuple(t["symbols"]), t["bytes"]) for t in found["tensors"]),
        bytes=found["bytes"], context=found["context"], largest_context=found["largest_context"],
        text=texts[1])
