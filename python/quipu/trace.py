"""What each worker did, and when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quipu._native import check, ffi, lib, sized, take_text, whole
from quipu.schedule import Schedule

if TYPE_CHECKING:
    from quipu._engine import Engine
    from quipu.model import Model


TIMING = np.dtype([("wait", "<i8"), ("work", "<i8"), ("signal", "<i8"), ("end", "<i8")])
"""When a worker began to wait, to compute and to signal, and when it had signalled."""


class Trace:
    """Records the passes of a model while it is open: `with model.trace() as trace: ...`."""

    def __init__(self, model: Model, max_passes: int = 64) -> None:
        options = sized("qp_trace_options", max_passes=whole(max_passes, "max_passes"))

        def open_trace(engine: Engine) -> Any:
            error, out = ffi.new("qp_error *"), ffi.new("qp_trace **")
            check(lib.qp_trace_open(engine.pointer, options, out, error), error)
            return engine.own(out[0], lib.qp_trace_close, "trace")

        self._model = model
        self._native = model._engine.call(open_trace)

    def _text(self, form: int) -> str:
        def print_trace(_: Engine) -> bytes:
            error, out, length = ffi.new("qp_error *"), ffi.new("char **"), ffi.new("size_t *")
            check(lib.qp_trace_print(self._native.pointer, form, out, length, error), error)
            return take_text(out[0], length[0])

        return self._model._engine.call(print_trace).decode("utf-8")

    def table(self) -> str:
        """Sums by operator: time, share, GB/s, GFLOP/s, share of the limit, waiting."""
        return self._text(lib.QP_TRACE_TABLE)

    def timings(self) -> npt.NDArray[Any]:
        """When each instruction of Model.schedule() ran: TIMING (passes, workers, longest), in nanoseconds from
        the beginning of its pass; -1 where a queue has no instruction, or nothing was recorded."""
        def read(engine: Engine) -> tuple[bytes, bytes]:
            error, out, length = ffi.new("qp_error *"), ffi.new("char **"), ffi.new("size_t *")
            check(lib.qp_trace_print(self._native.pointer, lib.QP_TRACE_TIMINGS, out, length, error), error)
            timings = take_text(out[0], length[0])
            check(lib.qp_engine_schedule(engine.pointer, out, length, error), error)
            return timings, take_text(out[0], length[0])

        timings, schedule = self._model._engine.call(read)
        return np.frombuffer(timings, TIMING).reshape(-1, *Schedule(schedule).instructions.shape)

    def events(self) -> dict[str, Any]:
        """The events in the form of ui.perfetto.dev and chrome://tracing."""
        events: dict[str, Any] = json.loads(self._text(lib.QP_TRACE_CHROME))
        return events

    def html(self) -> str:
        """A page: the schedule as planned above the passes as measured."""
        return self._text(lib.QP_TRACE_HTML)

    def close(self) -> None:
        """Frees the record; nothing more is recorded."""
        self._native.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
