"""Answers while they are made."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quipu._engine import Engine, Work
from quipu._native import Floats, Tokens, lib
from quipu._lora import Uses
from quipu._slots import Slot
from quipu._step import Stepped
from quipu._text import TextStream, ToolCall
from quipu.errors import InvalidError, QuipuError
from quipu.grammar import Matcher
from quipu.sampling import Sampler, Sampling


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of the probability of a token, and those of the likeliest ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Answer(Work):
    """The engine's side of a Generation. It does not refer to that, so that one which nobody reads ends."""

    def __init__(self, prompt: Tokens, sampling: Sampling, max_tokens: int, slot: Slot | None, context: int,
                 logprobs: int | None, special: bool, tools: Sequence[str] | None, lora: Uses) -> None:
        super().__init__()
        self.lora = lora
        self.prompt, self.sampling, self.max_tokens = prompt, sampling, max_tokens
        self.slots, self.wants_slot = ((slot,), False) if slot else ((), True)
        self.special, self.context, self.n_top = special, context, logprobs
        self.tools = tools
        """Names of the tools of a conversation; None: the answer is to no conversation, and all of it is text."""
        self.text: TextStream | None = None
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.pieces: list[str] = []
        self.finish: str | None = None
        self.shared_tokens = 0
        self.submitted, self.first, self.last = time.monotonic(), 0.0, 0.0

    # ---- the engine's thread

    def begin(self, engine: Engine) -> bool:
        if self.wants_slot:
            like = None
            if self.n_top is None:  # a sequence that is like another gets no logits of the prompt
                like = next((work for work in engine.running(Answer) if work.is_like(self)), None)
            slot = engine.slots.open(self.lora) if like else engine.slots.take(self.prompt, self.lora)
            slot.is_users = False
            self.slots = (slot,)
        else:
            like = None
        held = self.slots[0].count
        self.shared_tokens = held if self.wants_slot else 0
        pending = self.prompt[self.shared_tokens:]
        if len(pending) + held > self.context:
            raise InvalidError(f"the context is full: the session holds {held} tokens, {len(pending)} more were "
                               f"given, and it has room for {self.context} in all")
        self.text = text = self.open_text(engine)
        self.sequence = AnswerSequence(self, engine, text, pending, held)
        self.sequence.like = like.sequence if like else None
        self.sequences = (self.sequence,)
        if self.is_cancelled:
            self.cancel()
        return True

    def open_text(self, engine: Engine) -> TextStream:
        sampling, _keep = self.sampling._native(engine)
        return TextStream(engine, lib.qp_engine_vocabulary(engine.pointer), sampling, self.prompt, self.tools or (),
                          self.tools is not None, self.special)

    def is_like(self, other: Answer) -> bool:
        """Whether it reads the same prompt in an own session, and has not begun to answer."""
        return (self.wants_slot and not self.sequence.made and self.sequence.like is None and self.shared_tokens == 0
                and not self.is_cancelled and self.lora == other.lora and np.array_equal(self.prompt, other.prompt))

    def stepped(self) -> bool:
        if self.sequence.failure is not None:
            raise self.sequence.failure
        if self.is_cancelled and self.finish is None:
            self.finish = "cancelled"
        if self.finish is None:
            self.publish(ended=False)
            return True
        return False

    def end(self, failure: BaseException | None) -> None:
        if self.is_cancelled and failure is not None and getattr(failure, "status", "") == "QP_CANCELLED":
            failure = None
        if failure is None:
            self.finish = self.finish or "cancelled"
            try:
                if self.text is not None:
                    self.text.end()
            except QuipuError as problem:
                failure = problem
        self.last = time.monotonic()
        self.failure = failure
        self.publish(ended=True)

    def publish(self, ended: bool) -> None:
        """Hands what is new to those who wait for it."""
        fresh = self.text.take() if self.text is not None else ""
        if not fresh and not ended:
            return
        if fresh:
            self.pieces.append(fresh)
        self.done = ended
        self.notify()


class AnswerSequence(Stepped):
    """The sequence of an answer."""

    def __init__(self, answer: Answer, engine: Engine, text: TextStream, pending: Tokens, held: int) -> None:
        sampling = answer.sampling
        super().__init__(answer.slots[0], pending, Sampler._of_engine(engine, sampling), answer.max_tokens,
                         engine.vocab_size)
        self.answer, self.text = answer, text
        self.read = held + len(pending)
        self.matcher = Matcher._of_engine(engine, sampling) if sampling.grammar else None
        self.wants_logits = answer.n_top is not None
        self.row: Floats | None = None

    def fill(self, native: Any, places: dict[int, Any], interval: int) -> None:
        if self.like is not None and id(self.like) not in places:
            self.like = None  # it has ended: the prompt is read here
        if self.matcher is not None and self.sampler is not None:
            self.sampler.allow(self.matcher.allowed())
        super().fill(native, places, interval)

    def receive_logits(self, index: int, row: Floats) -> None:
        self.row = row

    def receive_token(self, token: int) -> bool:
        answer = self.answer
        if not answer.first:
            answer.first = time.monotonic()
        if self.sampler is None or token in self.sampler.stop_tokens:
            answer.finish = "stop"
            return False
        if self.matcher is not None:
            self.matcher.take(token)
        answer.tokens.append(token)
        if answer.n_top is not None and self.row is not None:
            answer.logprobs.append(logprob(self.row, token, answer.n_top))
        if not self.text.add(token):
            answer.finish = "stop"
        elif 0 < self.max_tokens <= len(self.made):
            answer.finish = "length"
        elif self.read + len(self.made) - 1 >= answer.context:
            answer.finish = "context"
        return answer.finish is None


def logprob(row: Floats, token: int, n_top: int) -> TokenLogprob:
    """From a row of logits; of equally likely tokens the lower id first."""
    peak = float(row.max())
    total = peak + float(np.log(np.exp(row - peak, dtype=np.float64).sum()))
    n_top = min(n_top, len(row))
    likeliest = np.argpartition(-row, n_top - 1)[:n_top] if n_top else np.zeros(0, dtype=np.int64)
    ordered = sorted(likeliest.tolist(), key=lambda i: (-row[i], i))
    return TokenLogprob(token, float(row[token]) - total, tuple((i, float(row[i]) - total) for i in ordered))


class Generation:
    """An answer while it is made: iterate over its pieces of text, also by `async for`, or take text().

    It is made whether or not it is read. Closing it, leaving the loop or forgetting it cancels what is
    left. `tokens` holds the ids so far, `thinking` and `tool_calls` what is not text; after the end `finish` is
    the finish reason ("stop", "length", "context", "cancelled"), and `statistics` has the counts and times.
    """

    def __init__(self, engine: Engine, answer: Answer, keep: object, schema: object = None) -> None:
        self._engine, self._answer, self._keep, self._schema = engine, answer, keep, schema
        engine.submit(answer)

    @property
    def tokens(self) -> list[int]:
        """The ids of the answer so far."""
        return list(self._answer.tokens)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """For each token, if `logprobs` was given."""
        return list(self._answer.logprobs)

    @property
    def finish(self) -> str | None:
        """Why the answer has ended; None: it has not."""
        return self._answer.finish if self._answer.done else None

    @property
    def statistics(self) -> dict[str, float]:
        """Counts of tokens, and seconds; empty before the end. `shared_tokens` of the prompt were not read
        again."""
        answer = self._answer
        if not answer.done:
            return {}
        first = answer.first or answer.last
        return {"prompt_tokens": len(answer.prompt), "shared_tokens": answer.shared_tokens,
                "generated_tokens": len(answer.tokens), "prompt_seconds": first - answer.submitted,
                "generate_seconds": answer.last - first}

    @property
    def thinking(self) -> str:
        """What an answer of chat() has thought so far, by the marks of the model's template, such as <think>.
        It is not part of the text."""
        text = self._answer.text
        return "".join(text.thoughts) if text is not None else ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of `tools` of chat() that the answer holds so far; all of them after the end. They are not
        part of the text. A call that is cut off or damaged is `broken`."""
        text = self._answer.text
        return list(text.calls) if text is not None else []

    def _raise(self) -> None:
        if self._answer.failure is not None:
            raise self._answer.failure

    def _cancel(self) -> None:
        if not self._answer.done:
            self._engine.cancel(self._answer)

    def __iter__(self) -> Iterator[str]:
        answer, n = self._answer, 0
        try:
            while True:
                if len(answer.pieces) == n and not answer.done:
                    self._check_thread()
                    answer.wait_for(lambda: len(answer.pieces) > n or answer.done)
                if len(answer.pieces) == n:
                    break
                yield answer.pieces[n]
                n += 1
        finally:
            self._cancel()
        self._raise()

    async def __aiter__(self) -> AsyncIterator[str]:
        answer, n = self._answer, 0
        try:
            while True:
                await self._wait(lambda: len(answer.pieces) > n)
                if len(answer.pieces) == n:
                    break
                yield answer.pieces[n]
                n += 1
        finally:
            self._cancel()
        self._raise()

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        """Until something is there, or the end."""
        answer, loop = self._answer, asyncio.get_running_loop()
        while True:
            self._check_thread()
            future: asyncio.Future[None] = loop.create_future()
            answer.watch(functools.partial(_wake, loop, future))
            if is_there() or answer.done:
                return
            await future

    def _check_thread(self) -> None:
        self._engine.check_forked()
        if self._engine.is_current:
            raise InvalidError("receivers such as on_logits cannot wait for an answer: the model runs")

    def text(self) -> str:
        """The whole answer, when it has ended."""
        if not self._answer.done:
            self._check_thread()
            try:
                self._answer.wait_done()
            except BaseException:
                self._cancel()
                raise
        self._raise()
        return "".join(self._answer.pieces)

    def __await__(self) -> Generator[Any, None, str]:
        """`await model.generate(...)` is the whole answer."""
        async def whole() -> str:
            try:
                await self._wait(lambda: False)
            except BaseException:
                self._cancel()
                raise
            return self.text()
        return whole().__await__()

    def parsed(self) -> Any:
        """The answer as its schema has it: an object of the pydantic class, else what JSON holds."""
        text = self.text()
        for name in ("model_validate_json", "parse_raw"):  # pydantic 2, and 1
            if isinstance(self._schema, type) and hasattr(self._schema, name):
                return getattr(self._schema, name)(text)
        return json.loads(text)

    def close(self) -> None:
        """Ends the answer; the session keeps what was made. Returns when it has ended."""
        self._cancel()
        if not self._engine.is_of_parent and not self._engine.is_current:
            self._answer.wait_done()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_answer"):
            self._cancel()


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(wake)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
