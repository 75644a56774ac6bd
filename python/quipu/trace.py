"""What each worker did, and when."""

from __future__ import annotations

import json
from typing import Any

from quipu._native import Handle, check, ffi, lib, sized, take_text


class Trace(Handle):
    """Records the passes of a model while it is open: `with model.trace() as trace: ...`."""

    def __init__(self, model, max_passes: int = 64) -> None:
        error, out = ffi.new("qp_error *"), ffi.new("qp_trace **")
        options = sized("qp_trace_options", max_passes=max_passes)
        check(lib.qp_trace_open(model._pointer, options, out, error), error)
        self._handle, self._model = out[0], model

    def _text(self, form: int) -> str:
        error, out, length = ffi.new("qp_error *"), ffi.new("char **"), ffi.new("size_t *")
        check(lib.qp_trace_print(self._pointer, form, out, length, error), error)
        return take_text(out[0], length[0]).decode("utf-8")

    def table(self) -> str:
        """Sums by operator: time, share, GB/s, GFLOP/s, share of the limit, waiting."""
        return self._text(lib.QP_TRACE_TABLE)

    def events(self) -> dict[str, Any]:
        """The events in the form of ui.perfetto.dev and chrome://tracing."""
        return json.loads(self._text(lib.QP_TRACE_CHROME))

    def html(self) -> str:
        """A page: the schedule as planned above the passes as measured."""
        return self._text(lib.QP_TRACE_HTML)

    def close(self) -> None:
        if self._handle is not None:
            lib.qp_trace_close(self._handle)
        self._handle = None

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
