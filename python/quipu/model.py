"""Models, sessions and generation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from quipu._native import Handle, check, ffi, lib, set_option, sized
from quipu.sampling import Sampler, Sampling
from quipu.step import Sequence as StepSequence
from quipu.step import step
from quipu.trace import Trace
from quipu.vocabulary import Vocabulary


@dataclass(frozen=True)
class ModelInfo:
    """Sizes of an open model; see qp_engine_info in quipu.h."""

    vocab_size: int
    context: int
    model_context: int
    max_outputs: int
    chunk: int
    weight_bytes: int
    threads: int
    device: str


class Generation:
    """An answer while it is made: iterate over its pieces of text.

    Closing it (or leaving the loop) cancels what is left. After the end `finish` is the finish
    reason ("stop", "length", ...), `tokens` holds the ids and `statistics` the counts and times.
    """

    def __init__(self, session: Session, prompt: Sequence[int], sampling: Sampling,
                 max_tokens: int) -> None:
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.statistics: dict[str, float] = {}
        self._failure: BaseException | None = None
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._cancel = ffi.new("int *")
        self._session = session
        self._thread = threading.Thread(target=self._run, args=(list(prompt), sampling, max_tokens),
                                        daemon=True)
        self._thread.start()

    def _run(self, prompt: list[int], sampling: Sampling, max_tokens: int) -> None:
        try:
            native, keep = sampling._native(self._session._model._pointer)
            ids = ffi.new("int32_t[]", prompt or 1)

            @ffi.callback("qp_status(void *, int32_t, const char *, size_t)")
            def on_token(_context, token, text, length):
                if token >= 0:
                    self.tokens.append(token)
                if length:
                    self._pieces.put(ffi.buffer(text, length)[:])
                return lib.QP_OK

            options = sized("qp_generate_options", prompt=ids, n_prompt=len(prompt),
                            sampling=native, max_tokens=max_tokens, cancel=self._cancel,
                            on_token=on_token)
            result, error = sized("qp_generate_result"), ffi.new("qp_error *")
            check(lib.qp_generate(self._session._pointer, options, result, error), error)
            self.finish = ffi.string(lib.qp_finish_name(result.finish)).decode()
            self.statistics = {"prompt_tokens": result.prompt_tokens,
                               "generated_tokens": result.generated_tokens,
                               "prompt_seconds": result.prompt_seconds,
                               "generate_seconds": result.generate_seconds}
            del keep
        except BaseException as failure:  # handed to the thread that iterates
            self._failure = failure
        finally:
            self._pieces.put(None)

    def __iter__(self) -> Iterator[str]:
        try:
            while (piece := self._pieces.get()) is not None:
                yield piece.decode("utf-8", "replace")
        finally:
            self.close()
        if self._failure is not None:
            raise self._failure

    def text(self) -> str:
        """The whole answer."""
        return "".join(self)

    def close(self) -> None:
        """Ends the answer; the session keeps what was made."""
        self._cancel[0] = 1
        self._thread.join()


class Session(Handle):
    """One sequence of a model: its tokens, and their part of the KV cache."""

    def __init__(self, model: Model, pointer=None) -> None:
        self._model = model
        if pointer is None:
            error, out = ffi.new("qp_error *"), ffi.new("qp_session **")
            check(lib.qp_session_open(model._pointer, out, error), error)
            pointer = out[0]
        self._handle = pointer
        model._sessions.append(self)

    @property
    def tokens(self) -> list[int]:
        """The ids that the session holds."""
        count = ffi.new("size_t *")
        data = lib.qp_session_tokens(self._pointer, count)
        return list(ffi.unpack(data, count[0])) if count[0] else []

    def truncate(self, keep: int) -> None:
        """Forgets all but the first `keep` tokens."""
        lib.qp_session_truncate(self._pointer, keep)

    def fork(self) -> Session:
        """Another session with the same tokens; both share the pages of the cache."""
        error, out = ffi.new("qp_error *"), ffi.new("qp_session **")
        check(lib.qp_session_fork(self._pointer, out, error), error)
        return Session(self._model, out[0])

    def eval(self, tokens: Sequence[int], *, every_row: bool = False,
             on_logits: Callable[[int, np.ndarray], None] | None = None) -> np.ndarray | None:
        """Reads tokens. Returns the logits after the last, float32 (vocab_size), or after each,
        (len(tokens), vocab_size). With `on_logits` the rows are handed to it one by one as views of
        the library's memory, valid during the call and without a copy, and nothing is returned."""
        return self._model.eval([(self, tokens)], every_row=every_row,
                                on_logits=None if on_logits is None
                                else lambda _, token, row: on_logits(token, row))[0]

    def generate(self, prompt: str | Sequence[int], *, max_tokens: int = 0,
                 sampling: Sampling | None = None, **settings: Any) -> Generation:
        """Reads the prompt and makes tokens until an end. Settings are those of Sampling."""
        ids = self._model.tokenize(prompt) if isinstance(prompt, str) else prompt
        return Generation(self, ids, sampling or Sampling(**settings), max_tokens)

    def close(self) -> None:
        if self._handle is not None:
            lib.qp_session_close(self._handle)
            self._model._sessions.remove(self)
        self._handle = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _schedule(keep: list[Any], choices: Mapping[str, Any]) -> Any:
    """A qp_schedule_options; `keep` holds its texts."""
    native = sized("qp_schedule_options")
    for name, value in choices.items():
        set_option(native, keep, "a schedule", name,
                   value if isinstance(value, (int, float)) else str(value))
    return native


class Model(Handle):
    """An open model. Options are those of qp_engine_options in quipu.h: threads, context, device
    ("cpu", "cuda", "auto"), exec, max_sessions, max_outputs, chunk, page_size, kv_type, ...
    `schedule` has those of qp_schedule_options: {"setting": "throughput", "assignment": "dag"}."""

    _NOT_OPTIONS = {"log_context", "progress", "progress_context"}

    def __init__(self, path: str, *, log: Callable[[str], None] | None = None,
                 **options: Any) -> None:
        error, out = ffi.new("qp_error *"), ffi.new("qp_engine **")
        self._sessions: list[Session] = []
        self._keep: list[Any] = []
        native = sized("qp_engine_options")
        for name, value in {"model": str(path), **options}.items():
            if name in self._NOT_OPTIONS:
                raise TypeError(f"Model has no option {name!r}")
            if name == "schedule" and value is not None:
                self._keep.append(value := _schedule(self._keep, value))
            set_option(native, self._keep, "Model", name, value)

        @ffi.callback("void(void *, qp_log_level, const char *)")
        def on_log(_context, _level, message):
            if log is not None:
                log(ffi.string(message).decode("utf-8", "replace"))

        self._keep.append(on_log)
        native.log = on_log
        check(lib.qp_engine_open(native, out, error), error)
        self._handle = out[0]

    @property
    def info(self) -> ModelInfo:
        native = lib.qp_engine_get_info(self._pointer)
        values = {f.name: getattr(native, f.name) for f in fields(ModelInfo)}
        return ModelInfo(**{**values, "device": ffi.string(values["device"]).decode()})

    @property
    def vocabulary(self) -> Vocabulary | None:
        """None where the model has none (synthetic weights)."""
        pointer = lib.qp_engine_vocabulary(self._pointer)
        return Vocabulary._of_engine(pointer, self) if pointer else None

    def _need_vocabulary(self) -> Vocabulary:
        vocabulary = self.vocabulary
        if vocabulary is None:
            raise ValueError("the model has no vocabulary: give token ids instead of text")
        return vocabulary

    def tokenize(self, text: str | bytes, **flags: Any) -> list[int]:
        return self._need_vocabulary().tokenize(text, **flags)

    def detokenize(self, ids: Sequence[int], **flags: Any) -> str:
        return self._need_vocabulary().detokenize(ids, **flags)

    def reschedule(self, **choices: Any) -> None:
        """Gives the machines "threads" and "serial" another schedule: setting, assignment,
        memory_fraction or file, as in qp_schedule_options; without any, the usual one. Logits keep
        their bits. After a failure the old schedule stays."""
        error, keep = ffi.new("qp_error *"), []
        check(lib.qp_engine_reschedule(self._pointer, _schedule(keep, choices), error), error)

    def session(self) -> Session:
        """A new, empty sequence; as many at once as `max_sessions` says."""
        return Session(self)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Generation:
        """Continues a prompt in a session of its own; see Session.generate."""
        return _OwnSession(self.session(), prompt, options)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Generation:
        """Answers a conversation [{"role": ..., "content": ...}, ...] by the model's template.
        Control tokens that are written in messages stay text."""
        return self.generate(self._need_vocabulary().tokenize_chat(messages), **options)

    def eval(self, inputs: Sequence[tuple[Session, Sequence[int]]], *, every_row: bool = False,
             on_logits: Callable[[int, int, np.ndarray], None] | None = None) -> list:
        """Reads tokens of several sessions as one batch; see Session.eval. on_logits(input, token,
        row) gets views without a copy; else the result has an array for each input."""
        vocab_size = self.info.vocab_size
        for i, (_, tokens) in enumerate(inputs):
            if not len(tokens):
                raise ValueError(f"input {i} has no tokens to read")
        arrays = [ffi.new("int32_t[]", list(tokens)) for _, tokens in inputs]
        native = ffi.new("qp_input[]", [
            {"session": session._pointer, "tokens": array, "count": len(tokens),
             "every_row": every_row}
            for (session, tokens), array in zip(inputs, arrays)])
        rows: list[list[np.ndarray]] = [[] for _ in inputs]
        failure: list[BaseException] = []

        @ffi.callback("qp_status(void *, size_t, size_t, const float *)")
        def take(_context, index, token, logits):
            row = np.frombuffer(ffi.buffer(logits, 4 * vocab_size), dtype=np.float32)
            row.flags.writeable = False
            try:
                if on_logits is None:
                    rows[index].append(row.copy())
                else:
                    on_logits(index, token, row)
            except BaseException as problem:
                failure.append(problem)
                return lib.QP_CANCELLED
            return lib.QP_OK

        error = ffi.new("qp_error *")
        status = lib.qp_eval(self._pointer, native, len(inputs), take, ffi.NULL, ffi.NULL, error)
        if failure:
            raise failure[0]
        check(status, error)
        if on_logits is not None:
            return [None] * len(inputs)
        return [np.stack(r) if every_row else r[-1] for r in rows]

    def decode(self, sessions: Sequence[Session], first: Sequence[int], count: int) -> np.ndarray:
        """`count` greedy passes over several sessions at once: int32 (count + 1, len(sessions)).
        Row 0 is `first`; each further row is what the sessions chose after the row before."""
        tokens = np.zeros((count + 1, len(sessions)), dtype=np.int32)
        tokens[0] = first
        error = ffi.new("qp_error *")
        pointers = ffi.new("qp_session *[]", [s._pointer for s in sessions])
        check(lib.qp_decode(self._pointer, pointers, len(sessions), count,
                            ffi.cast("int32_t *", tokens.ctypes.data), ffi.NULL, error), error)
        return tokens

    def sampler(self, sampling: Sampling | None = None, **settings: Any) -> Sampler:
        """Chooses the tokens of a sequence in step(). Settings are those of Sampling."""
        return Sampler(self, sampling, **settings)

    def step(self, sequences: Sequence[StepSequence]) -> list[list[int]]:
        """Makes progress for all sequences and returns the tokens that were chosen for each.

        A batch is filled with the sequences that go on, then with new tokens of the others in their
        order. Sequences may join and leave from call to call. A call raises before anything is run
        where a token, a session or the memory does not allow it.

            batch = [quipu.Sequence(model.session(), model.tokenize(text),
                                    sampler=model.sampler(), max_tokens=64) for text in texts]
            while batch:
                model.step(batch)
                batch = [sequence for sequence in batch if not sequence.done]
        """
        return step(self, sequences)

    def trace(self, max_passes: int = 64) -> Trace:
        """Records the next passes; see Trace."""
        return Trace(self, max_passes)

    def close(self) -> None:
        """Closes the model and its sessions."""
        for session in list(self._sessions):
            session.close()
        if self._handle is not None:
            lib.qp_engine_close(self._handle)
        self._handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OwnSession(Generation):
    """A generation whose session is closed with it."""

    def __init__(self, session: Session, prompt: str | Sequence[int], options: dict) -> None:
        max_tokens = options.pop("max_tokens", 0)
        sampling = options.pop("sampling", None) or Sampling(**options)
        ids = session._model.tokenize(prompt) if isinstance(prompt, str) else prompt
        super().__init__(session, ids, sampling, max_tokens)

    def close(self) -> None:
        super().close()
        self._session.close()
