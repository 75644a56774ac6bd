"""Which LoRA adapters of a model an answer or a session has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from quipu._native import check, ffi, instance, lib, listed, path_bytes
from quipu.errors import InvalidError, WrongTypeError
from quipu.options import Adapter, Lora

Uses = tuple[tuple[int, float], ...]
"""Numbers of adapters with their scales, in order."""


def adapters_of(options: Mapping[str, Any]) -> list[Adapter]:
    """The adapters of a model's options."""
    given = options.get("adapters")
    if isinstance(given, (str, os.PathLike, Adapter)):
        raise InvalidError(f"Model: adapters must be a list of paths or Adapters, found {given!r:.100}")
    adapters = [a if isinstance(a, Adapter) else Adapter(a)
                for a in listed(() if given is None else given, "Model: adapters")]
    for a in adapters:
        path_bytes(a.path, "Model: the path of an adapter")
        instance(a.name, str, "Model: the name of an adapter")
        if instance(a.scale, (int, float), "Model: the scale of an adapter") == 0:
            raise InvalidError(f"Model: the scale of adapter {a.path} must not be 0; leave it out, or let it wait")
    return adapters


class Adapters:
    """The adapters of an open model."""

    def __init__(self, adapters: Sequence[Adapter], merged: bool) -> None:
        self._all = [] if merged else list(adapters)
        self.usual: Uses = tuple((i, a.scale) for i, a in enumerate(self._all) if not a.waits)
        """What sessions begin with."""

    def uses(self, what: str, lora: Lora) -> Uses:
        """What `lora` asks for."""
        if lora is None:
            return self.usual
        items: list[tuple[Any, float | None]]
        if isinstance(lora, (str, int, Integral)):
            items = [(lora, None)]
        elif isinstance(lora, Mapping):
            items = list(lora.items())
        else:
            items = [(name, None) for name in listed(lora, f"{what}: lora, if it is no name,")]
        found = []
        for name, scale in items:
            i = self._find(what, name)
            try:
                found.append((i, self._all[i].scale if scale is None else float(scale)))
            except (TypeError, ValueError):
                raise WrongTypeError(f"{what}: the scale of adapter {name!r:.60} is a number, found {scale!r:.40}") from None
        return tuple(sorted(found))

    def _find(self, what: str, name: Any) -> int:
        found = [i for i, a in enumerate(self._all) if isinstance(name, str) and name in _names(a)]
        if isinstance(name, Integral) and not isinstance(name, bool) and 0 <= int(name) < len(self._all):
            return int(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidError(f"{what}: {len(found)} adapters are called {name!r:.60}; choose one by its number")
        names = ", ".join(a.name or os.path.basename(os.fspath(a.path)) for a in self._all) or "none"
        raise InvalidError(f"{what}: the model has no adapter {name!r:.60}; it has {names}")


def _names(adapter: Adapter) -> tuple[str, ...]:
    """What an adapter is called: its name and its path; without a name, also the last part of the path."""
    path = os.fspath(adapter.path)
    return (adapter.name, path) if adapter.name else (path, os.path.basename(path))


def adapt(session: Any, uses: Uses) -> None:
    """Gives an empty qp_session these adapters."""
    native = ffi.new("qp_adapter_use[]", [{"adapter": i, "scale": scale} for i, scale in uses])
    error = ffi.new("qp_error *")
    check(lib.qp_session_adapt(session, native, len(uses), error), error)
