"""Many sequences side by side: each call of Model.step() makes progress for those it is given."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

from quipu._engine import Engine, Work
from quipu._native import Floats, Tokens, check_receiver, flag, instance, listed, token_array, whole
from quipu._step import Stepped
from quipu.errors import InvalidError
from quipu.sampling import Sampler

if TYPE_CHECKING:
    from quipu.model import Model, Session


class Sequence(Stepped):
    """A session, the tokens that it reads next, and the sampler that chooses what follows.

    Arguments::

        session      its tokens, and their part of the KV cache; it belongs to one Sequence at a time
        tokens       what it reads first, such as a prompt
        sampler      chooses the tokens that follow; None: the tokens are only read
        max_tokens   that are chosen at most; 0: until the context is full
        interval     about how many are chosen in a step; 0: as many as cost nothing
        like         another sequence: when that has read all its tokens, this one's session, which is
                     empty, becomes a fork of that one's, and the sampler chooses from the same logits
        every_row    on_logits is called after each token of `tokens`, not only after the last
        on_logits    on_logits(index, row): the logits after token `index` of the tokens that the step
                     reads, float32 (vocab_size,), read-only: a view of the library's memory without a
                     copy, valid during the call
        on_token     on_token(token), for each token as it is chosen; False ends the sequence

    After a step `pending` are the tokens that are still to be read, `chosen` those that the step
    chose and `made` all that were chosen so far. `done` says that nothing follows: a stop token came
    (the last of `made`), on_token returned False, there are max_tokens, the context is full, all
    tokens of a sequence without a sampler were read, or it was cancelled. The receivers are called on
    the model's thread, while it runs: they cannot use the model.
    """

    def __init__(self, session: Session, tokens: abc.Sequence[int] | Tokens = (), *,
                 sampler: Sampler | None = None, max_tokens: int = 0, interval: int = 0,
                 like: Sequence | None = None, every_row: bool = False,
                 on_logits: Callable[[int, Floats], None] | None = None,
                 on_token: Callable[[int], bool | None] | None = None) -> None:
        from quipu.model import Session

        engine = instance(session, Session, "the session of a sequence")._model._engine
        if sampler is not None and instance(sampler, Sampler, "sampler")._native.owner is not engine:
            raise InvalidError("the sampler is another model's")
        if like is not None:
            instance(like, Sequence, "like")
        pending = token_array(tokens, "tokens", engine.vocab_size)
        super().__init__(session._slot, pending, sampler, whole(max_tokens, "max_tokens"), engine.vocab_size)
        self.session, self.like, self.every_row = session, like, flag(every_row, "every_row")
        self.interval = whole(interval, "interval")
        for function, what in ((on_logits, "on_logits"), (on_token, "on_token")):
            check_receiver(function, what)
        self.on_logits, self.on_token = on_logits, on_token

    @property
    def wants_logits(self) -> bool:  # type: ignore[override]
        """Whether on_logits was given."""
        return self.on_logits is not None

    def receive_logits(self, index: int, row: Floats) -> None:
        if self.on_logits is not None:
            self.on_logits(index, row)

    def receive_token(self, token: int) -> bool:
        stops = self.sampler is not None and token in self.sampler.stop_tokens
        wanted = self.on_token is None or self.on_token(token) is not False
        return wanted and not stops

    def cancel(self) -> None:
        """Ends the sequence, also from another thread while a step runs."""
        self.cancel_flag[0] = 1
        self.done = True


class _Turn(Work):
    """One step of several sequences."""

    def __init__(self, sequences: abc.Sequence[Sequence]) -> None:
        super().__init__()
        self.sequences = sequences
        self.slots = tuple(sequence.slot for sequence in sequences)

    def begin(self, engine: Engine) -> bool:
        return True

    def stepped(self) -> bool:
        for sequence in self.sequences:
            if sequence.failure is not None:
                failure, sequence.failure = sequence.failure, None
                raise failure
        self.check_cancelled()
        return False


def step(model: Model, sequences: abc.Sequence[Sequence]) -> list[list[int]]:
    """See Model.step()."""
    sequences = [instance(s, Sequence, "one of the sequences") for s in listed(sequences, "the sequences of a step")]
    held: set[int] = set()
    for i, sequence in enumerate(sequences):
        if sequence.done and not sequence.cancel_flag[0]:
            raise InvalidError(f"sequence {i} is done: leave it out of the step")
        if not len(sequence.pending) and sequence.like is None:
            raise InvalidError(f"sequence {i} has no tokens to read")
        if sequence.like is not None and sequence.like not in sequences:
            raise InvalidError("the sequence that another one is like is not part of the step")
        if sequence.session._model is not model:
            raise InvalidError(f"the session of sequence {i} is another model's")
        if id(sequence.slot) in held:
            raise InvalidError(f"sequence {i} names a session that is given twice; give it all its tokens at once")
        held.add(id(sequence.slot))
    if not sequences:
        model._engine.check_open()
        return []
    turn = _Turn(sequences)
    model._engine.submit(turn)
    model._engine.wait(turn)
    return [sequence.chosen for sequence in sequences]
