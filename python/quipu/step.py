"""Many sequences side by side: each call of Model.step() makes progress for those it is given."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from quipu._native import check, ffi, lib
from quipu.sampling import Sampler

if TYPE_CHECKING:
    from quipu.model import Model, Session


class Sequence:
    """A session, the tokens that it reads next, and the sampler that chooses what follows.

    session      its tokens, and their part of the KV cache; it belongs to one Sequence at a time
    tokens       what it reads first, such as a prompt
    sampler      chooses the tokens that follow; None: the tokens are only read
    max_tokens   that are chosen at most; 0: until the context is full
    interval     about how many are chosen in a step; 0: as many as cost nothing
    like         another sequence: when that has read all its tokens, this one's session, which is
                 empty, becomes a fork of that one's, and the sampler chooses from the same logits
    every_row    on_logits is called after each token of `tokens`, not only after the last
    on_logits    on_logits(index, row): the logits after token `index` of the tokens that the step
                 reads, float32 (vocab_size), read-only: a view of the library's memory without a
                 copy, valid during the call
    on_token     on_token(token), for each token as it is chosen; False ends the sequence

    After a step `pending` are the tokens that are still to be read, `chosen` those that the step
    chose and `made` all that were chosen so far. `done` says that nothing follows: a stop token came
    (the last of `made`), on_token returned False, there are max_tokens, the context is full, all
    tokens of a sequence without a sampler were read, or it was cancelled.
    """

    def __init__(self, session: Session, tokens: abc.Sequence[int] | np.ndarray = (), *,
                 sampler: Sampler | None = None, max_tokens: int = 0, interval: int = 0,
                 like: Sequence | None = None, every_row: bool = False,
                 on_logits: Callable[[int, np.ndarray], None] | None = None,
                 on_token: Callable[[int], bool | None] | None = None) -> None:
        self.session, self.sampler, self.like = session, sampler, like
        self.pending: np.ndarray = np.array(tokens, dtype=np.int32)
        self.max_tokens, self.interval, self.every_row = max_tokens, interval, every_row
        self.on_logits, self.on_token = on_logits, on_token
        self.chosen: list[int] = []
        self.made: list[int] = []
        self.done = False
        self._cancel = ffi.new("int *")
        self._failure: BaseException | None = None
        self._vocab_size = session._model.info.vocab_size
        self._context = session._model.info.context

    def cancel(self) -> None:
        """Ends the sequence, also from another thread while a step runs."""
        self._cancel[0] = 1
        self.done = True

    def _native(self, likes: dict[int, int], array) -> dict:
        """The members of its qp_sequence; `likes`: where each sequence of the step is."""
        if self.like is not None and id(self.like) not in likes:
            raise ValueError("the sequence that another one is like is not part of the step")
        self.chosen, self._failure = [], None
        self._handle = ffi.new_handle(self)
        return {"size": ffi.sizeof("qp_sequence"), "session": self.session._pointer,
                "tokens": ffi.from_buffer("int32_t[]", self.pending), "count": len(self.pending),
                "like": ffi.NULL if self.like is None else array + likes[id(self.like)],
                "sampler": ffi.NULL if self.sampler is None else self.sampler._pointer,
                "max_tokens": self.max_tokens and self.max_tokens - len(self.made),
                "interval": self.interval, "every_row": self.every_row, "cancel": self._cancel,
                "on_logits": ffi.NULL if self.on_logits is None else _on_logits,
                "on_token": _on_token, "context": self._handle}

    def _take(self, native) -> None:
        """What came of a step."""
        if self.like is not None and native.read:
            self.like, self.pending = None, self.pending[:0]
        elif self.like is None:
            self.pending = self.pending[native.read:]
        if self.chosen:
            self.pending = np.array(self.chosen[-1:], dtype=np.int32)
        held = ffi.new("size_t *")
        lib.qp_session_tokens(self.session._pointer, held)
        enough = 0 < self.max_tokens <= len(self.made)
        nothing_follows = self.sampler is None and len(self.pending) == 0
        self.done |= held[0] >= self._context or enough or nothing_follows


@ffi.callback("qp_status(void *, size_t, const float *)")
def _on_logits(context, index, logits):
    sequence = ffi.from_handle(context)
    row = np.frombuffer(ffi.buffer(logits, 4 * sequence._vocab_size), dtype=np.float32)
    row.flags.writeable = False
    try:
        sequence.on_logits(index, row)
    except BaseException as failure:  # raised again when the step has ended
        sequence._failure = failure
        return lib.QP_CANCELLED
    return lib.QP_OK


@ffi.callback("_Bool(void *, int32_t)")
def _on_token(context, token):
    sequence = ffi.from_handle(context)
    sequence.chosen.append(token)
    sequence.made.append(token)
    sequence.done |= token in sequence.sampler.stop_tokens
    try:
        if sequence.on_token is not None and sequence.on_token(token) is False:
            sequence.done = True
    except BaseException as failure:
        sequence._failure, sequence.done = failure, True
    return not sequence.done


def step(model: Model, sequences: abc.Sequence[Sequence]) -> list[list[int]]:
    """See Model.step()."""
    array = ffi.new("qp_sequence[]", len(sequences) or 1)
    places = {id(sequence): i for i, sequence in enumerate(sequences)}
    for i, sequence in enumerate(sequences):
        if sequence.done and not sequence._cancel[0]:
            raise ValueError(f"sequence {i} is done: leave it out of the step")
        if not len(sequence.pending) and sequence.like is None:
            raise ValueError(f"sequence {i} has no tokens to read")
        array[i] = sequence._native(places, array)
    error = ffi.new("qp_error *")
    status = lib.qp_step(model._pointer, array, len(sequences), error)
    for i, sequence in enumerate(sequences):
        sequence._take(array[i])
    for sequence in sequences:
        if sequence._failure is not None:
            raise sequence._failure
    check(status, error)
    return [sequence.chosen for sequence in sequences]
