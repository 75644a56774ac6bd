"""A sequence in a step, as the engine's thread sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quipu._native import Floats, Tokens, ffi, lib
from quipu.errors import InvalidError

if TYPE_CHECKING:
    from quipu._slots import Slot
    from quipu.sampling import Sampler

_NONE = np.zeros(0, dtype=np.int32)


class Stepped:
    """What it reads next, and what came of it. Subclasses override what they receive."""

    wants_logits = False
    wants_hidden = False
    every_row = False
    interval = 0
    like: Stepped | None = None
    """The sequence of the same step whose session this one's becomes a fork of."""

    def __init__(self, slot: Slot, pending: Tokens, sampler: Sampler | None, max_tokens: int,
                 vocab_size: int) -> None:
        self.slot, self.pending, self.sampler = slot, pending, sampler
        self.max_tokens, self._vocab_size = max_tokens, vocab_size
        self.chosen: list[int] = []
        self.made: list[int] = []
        self.done = False
        self.failure: BaseException | None = None
        self.cancel_flag = ffi.new("int *")
        self._handle: Any = None

    def receive_logits(self, index: int, row: Floats) -> None:
        """The logits after token `index` of those that the step reads."""

    def receive_hidden(self, index: int, pointer: Any) -> None:
        """The last hidden state, of which these logits are made."""

    def receive_token(self, token: int) -> bool:
        """False: the sequence ends."""
        return True

    def fill(self, native: Any, places: dict[int, Any], interval: int) -> None:
        """Writes its qp_sequence; `places`: where each sequence of the step is."""
        self.chosen = []
        self._handle = ffi.new_handle(self)
        native.size = ffi.sizeof("qp_sequence")
        native.session = self.slot.pointer
        native.cancel, native.context = self.cancel_flag, self._handle
        native.every_row = self.every_row
        native.on_token = _on_token
        if self.wants_logits:
            native.on_logits = _on_logits
        if self.wants_hidden:
            native.on_hidden = _on_hidden
        if self.like is not None:
            if id(self.like) not in places:
                raise InvalidError("the sequence that another one is like is not part of the step")
            native.like = places[id(self.like)]
        else:
            native.tokens = ffi.from_buffer("int32_t[]", self.pending)
            native.count = len(self.pending)
        if self.sampler is not None:
            native.sampler = self.sampler._prepare()
            native.max_tokens = max(1, self.max_tokens - len(self.made)) if self.max_tokens else 0
            native.interval = self.interval or interval

    def take(self, native: Any, context: int) -> None:
        """What came of a step."""
        self._handle = None
        if self.like is not None and native.read:
            self.like, self.pending = None, _NONE
        elif self.like is None:
            self.pending = self.pending[native.read:]
        if self.chosen:
            self.pending = np.array(self.chosen[-1:], dtype=np.int32)
        enough = 0 < self.max_tokens <= len(self.made)
        nothing_follows = self.sampler is None and self.like is None and len(self.pending) == 0
        self.done |= enough or nothing_follows or self.slot.count >= context


def _row(pointer: Any, length: int) -> Floats:
    row = np.frombuffer(ffi.buffer(pointer, 4 * length), dtype=np.float32)
    row.flags.writeable = False
    return row


def _fail(sequence: Stepped, failure: BaseException) -> None:
    """The sequence ends; the failure is raised after the step."""
    sequence.failure, sequence.done = failure, True
    sequence.cancel_flag[0] = 1


def _take_logits(context: Any, index: int, logits: Any) -> int:
    sequence: Stepped = ffi.from_handle(context)
    try:
        if sequence.failure is None:
            sequence.receive_logits(index, _row(logits, sequence._vocab_size))
    except BaseException as failure:
        _fail(sequence, failure)
    return int(lib.QP_OK)


def _take_hidden(context: Any, index: int, hidden: Any) -> int:
    sequence: Stepped = ffi.from_handle(context)
    try:
        sequence.receive_hidden(index, hidden)
    except BaseException as failure:
        _fail(sequence, failure)
    return int(lib.QP_OK)


def _take_token(context: Any, token: int) -> int:
    sequence: Stepped = ffi.from_handle(context)
    sequence.chosen.append(token)
    sequence.made.append(token)
    try:
        sequence.done |= sequence.failure is not None or not sequence.receive_token(token)
    except BaseException as failure:
        _fail(sequence, failure)
    return int(lib.QP_CANCELLED if sequence.done else lib.QP_OK)


_on_logits = ffi.callback("qp_status(void *, size_t, const float *)", _take_logits)
_on_hidden = ffi.callback("qp_status(void *, size_t, const float *)", _take_hidden)
_on_token = ffi.callback("qp_status(void *, int32_t)", _take_token)
