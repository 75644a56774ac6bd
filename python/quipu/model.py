"""Models and sessions."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from quipu._engine import Engine, Receiver, Work
from quipu._native import (Floats, Tokens, check, check_receiver, closed, ffi, flag, instance, known_option, lib, listed,
                           path_bytes, set_option, sized, take_text, text_of, token_array, whole)
from quipu._lora import Adapters, Uses, adapters_of
from quipu._slots import Slot
from quipu._step import Stepped
from quipu.errors import InvalidError, NoMemoryError, WrongTypeError
from quipu.generation import Answer, Generation
from quipu.grammar import Grammar
from quipu.hub import is_name, pull
from quipu.options import ChatOptions, GenerateOptions, Lora, ModelOptions, SamplingOptions, ScheduleOptions, Tensor
from quipu.sampling import Sampler, Sampling
from quipu.schedule import Schedule
from quipu.step import Sequence as StepSequence
from quipu.step import step
from quipu.trace import Trace
from quipu.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_SESSIONS = (8, 4, 2, 1)
"""How many answers are made at a time: the first that there is memory for."""


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


class _Reader(Stepped):
    """A sequence whose logits are wanted."""

    wants_logits = True

    def __init__(self, slot: Slot, tokens: Tokens, vocab_size: int, every_row: bool,
                 on_logits: Callable[[int, Floats], None]) -> None:
        super().__init__(slot, tokens, None, 0, vocab_size)
        self.every_row, self._count, self._on_logits = every_row, len(tokens), on_logits

    def receive_logits(self, index: int, row: Floats) -> None:
        token = self._count - len(self.pending) + index
        if self.every_row or token == self._count - 1:
            self._on_logits(token, row)


class _Embedder(Stepped):
    """A text whose last hidden states are wanted: their sum, or the last one."""

    wants_hidden = True

    def __init__(self, slot: Slot, tokens: Tokens, engine: Engine, of_all: bool, hidden_size: int) -> None:
        super().__init__(slot, tokens, None, 0, engine.vocab_size)
        self.every_row = self._of_all = of_all
        self.state = np.zeros(hidden_size)

    def receive_hidden(self, index: int, pointer: Any) -> None:
        row = np.frombuffer(ffi.buffer(pointer, 4 * len(self.state)), dtype=np.float32)
        self.state = self.state + row if self._of_all else row.astype(np.float64)


class _Embedding(Work):
    """One text in a session of its own."""

    wants_slot = True

    def __init__(self, tokens: Tokens, of_all: bool, context: int, hidden_size: int) -> None:
        super().__init__()
        if not 0 < len(tokens) <= context:
            raise InvalidError(f"a text of {len(tokens)} tokens has no embedding: it must have 1 to {context}, the "
                               "model's context")
        self._tokens, self._of_all, self._hidden_size = tokens, of_all, hidden_size

    def begin(self, engine: Engine) -> bool:
        slot = engine.slots.open(engine.adapters.usual)
        slot.is_users = False
        self.slots = (slot,)
        self._reader = _Embedder(slot, self._tokens, engine, self._of_all, self._hidden_size)
        self.sequences = (self._reader,)
        return True

    def stepped(self) -> bool:
        if self._reader.failure is not None:
            raise self._reader.failure
        self.check_cancelled()
        return not self._reader.done

    @property
    def vector(self) -> npt.NDArray[np.float64]:
        return self._reader.state / (len(self._tokens) if self._of_all else 1)


class _Reading(Work):
    """Sequences that are only read."""

    def __init__(self, sequences: Sequence[Stepped], context: int) -> None:
        super().__init__()
        self._all, self._context = list(sequences), context
        self.sequences = self._all
        self.slots = tuple(sequence.slot for sequence in sequences)

    def begin(self, engine: Engine) -> bool:
        for i, sequence in enumerate(self._all):
            held, more = sequence.slot.count, len(sequence.pending)
            if held + more > self._context:
                raise InvalidError(f"the context is full: the session of input {i} holds {held} tokens, {more} more "
                                   f"were given, and it has room for {self._context} in all")
        return True

    def stepped(self) -> bool:
        for sequence in self._all:
            if sequence.failure is not None:
                raise sequence.failure
        self.sequences = [sequence for sequence in self._all if not sequence.done]
        self.check_cancelled()
        return bool(self.sequences)


class Session:
    """One sequence of a model: its tokens, and their part of the KV cache. What several threads ask of it
    is done one after the other."""

    def __init__(self, model: Model, *, lora: Lora = None) -> None:
        uses = model._engine.adapters.uses("Session", lora)
        self._open(model, lambda engine, slot: engine.slots.open(uses, slot))

    def _open(self, model: Model, opens: Callable[[Engine, Slot], Slot], slots: tuple[Slot, ...] = ()) -> None:
        """The finalizer goes first, so that an exception while this waits leaves nothing open."""
        slot = Slot()
        slot.user = weakref.ref(self)
        self._model, self._open_slot = model, slot
        self._finalizer = weakref.finalize(self, model._engine.release, slot)
        self._finalizer.atexit = False
        model._engine.call(lambda engine: opens(engine, slot), slots=slots, wants_slot=True)

    @property
    def _slot(self) -> Slot:
        self._model._engine.check_forked()
        if not self._finalizer.alive or self._model._engine.is_closed:
            raise closed("session")
        return self._open_slot

    @property
    def tokens(self) -> list[int]:
        """The ids that the session holds."""
        slot = self._slot

        def read(_: Engine) -> list[int]:
            if slot.pointer is None:
                raise closed("session")
            ids: list[int] = slot.tokens.tolist()
            return ids

        return self._model._engine.call(read)

    def truncate(self, keep: int) -> None:
        """Forgets all but the first `keep` tokens."""
        slot = self._slot
        count = whole(keep, "truncate: how many tokens are kept")

        def truncate(_: Engine) -> None:
            error = ffi.new("qp_error *")
            check(lib.qp_session_truncate(slot.pointer, count, error), error)

        self._model._engine.call(truncate, slots=(slot,))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes its tokens and their pages of the KV cache to a file, which appears whole or not at all and is as
        large as the pages."""
        slot, name = self._slot, path_bytes(path)

        def save(_: Engine) -> None:
            error = ffi.new("qp_error *")
            check(lib.qp_session_save(slot.pointer, name, error), error)

        self._model._engine.call(save, slots=(slot,))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Makes the session, which must be empty, hold what save() wrote, without reading the tokens again. A file
        that is damaged, or of another model, other settings or another build of quipu, is refused, and the session
        stays empty."""
        slot, name = self._slot, path_bytes(path)

        def load(_: Engine) -> None:
            error = ffi.new("qp_error *")
            check(lib.qp_session_load(slot.pointer, name, error), error)

        self._model._engine.call(load, slots=(slot,))

    def fork(self) -> Session:
        """Another session with the same tokens; both share the pages of the cache."""
        slot = self._slot
        out = Session.__new__(Session)
        out._open(self._model, lambda engine, into: engine.slots.fork(slot, into), slots=(slot,))
        return out

    def eval(self, tokens: Sequence[int] | Tokens, *, every_row: bool = False,
             on_logits: Callable[[int, Floats], None] | None = None) -> Floats | None:
        """Reads tokens. Returns the logits after the last, float32 (vocab_size,), or after each,
        (len(tokens), vocab_size). With `on_logits` the rows are handed to it one by one as views of
        the library's memory, valid during the call and without a copy, and nothing is returned."""
        check_receiver(on_logits, "on_logits")
        receive = on_logits

        def take(_: int, token: int, row: Floats) -> None:
            if receive is not None:
                receive(token, row)

        return self._model.eval([(self, tokens)], every_row=every_row, on_logits=take if receive else None)[0]

    def generate(self, prompt: str | Sequence[int] | Tokens, **options: Unpack[GenerateOptions]) -> Generation:
        """Reads the prompt after what the session holds, and makes tokens until an end. Options are those
        of GenerateOptions: the settings of Sampling, max_tokens, schema, logprobs, ..."""
        return self._model._generate("Session.generate()", prompt, options, self)

    def close(self) -> None:
        """Frees its part of the cache; what runs in it is cancelled."""
        self._finalizer()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _schedule(keep: list[Any], choices: Mapping[str, Any]) -> Any:
    """A qp_schedule_options; `keep` holds its texts."""
    native = sized("qp_schedule_options")
    for name, value in choices.items():
        known_option("a schedule", name, ScheduleOptions.__annotations__)
        set_option(native, keep, "a schedule", name, value if isinstance(value, (int, float)) else str(value))
    return native


def _log(context: Any, _level: int, message: Any) -> None:
    ffi.from_handle(context)(text_of(message))


_on_log = ffi.callback("void(void *, qp_log_level, const char *)", _log)


def _set_log(native: Any, log: Any, keep: list[Any]) -> None:
    check_receiver(log, "log")
    if log is not None:
        keep.append(handle := ffi.new_handle(log))
        native.log, native.log_context = _on_log, handle


def _array_of(native: Any) -> npt.NDArray[Any]:
    kinds: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64}
    dtype = text_of(native.type)
    flat = np.frombuffer(ffi.buffer(native.data, native.bytes)[:], kinds.get(dtype, np.uint8))
    if dtype == "BF16":
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.reshape([native.dims[i] for i in range(native.rank)])


def _receive_tensor(context: Any, native: Any) -> int:
    receiver: Receiver = ffi.from_handle(context)
    try:
        receiver.receive(Tensor(text_of(native.name), int(getattr(native, "pass")), _array_of(native),
                                text_of(native.type)))
    except BaseException as failure:
        receiver.failure = failure
        return int(lib.QP_CANCELLED)
    return int(lib.QP_OK)


_on_tensor = ffi.callback("qp_status(void *, const qp_tensor *)", _receive_tensor)


def _adapters(keep: list[Any], options: Mapping[str, Any]) -> tuple[Any, int]:
    """An array of qp_adapter."""
    adapters = adapters_of(options)
    paths = [ffi.new("char[]", os.fsencode(a.path)) for a in adapters]
    native = ffi.new("qp_adapter[]", [{"path": p, "scale": a.scale, "waits": a.waits} for p, a in zip(paths, adapters)])
    keep += [paths, native]
    return native, len(adapters)


def _engine_options(path: str | os.PathLike[str], options: Mapping[str, Any], sessions: int, keep: list[Any]) -> Any:
    """A qp_engine_options; `keep` holds what it points to."""
    native = sized("qp_engine_options")
    value: Any
    for name, value in {"max_sessions": sessions, **options, "model": os.fsdecode(path_bytes(path, "a model"))}.items():
        if name == "schedule":
            if value is not None:
                keep.append(schedule := _schedule(keep, instance(value, Mapping, "Model: schedule")))
                native.schedule = schedule
        elif name == "log":
            _set_log(native, value, keep)
        elif name == "adapters":
            native.adapters, native.n_adapters = _adapters(keep, options)
        elif name == "on_tensor":
            check_receiver(value, "Model: on_tensor")
            if value is not None:
                keep.append(handle := ffi.new_handle(receiver := Receiver(value)))
                keep.append(receiver)
                native.on_tensor, native.tensor_context = _on_tensor, handle
        else:
            set_option(native, keep, "Model", name, value)
    return native


class Model:
    """An open model: a .gguf file, a Hugging Face directory, "synthetic:...", or a model of Hugging Face by a
    name such as "llama3.2:1b" or "hf:OWNER/NAME", which is fetched where its cache has not got it.

    Any thread may call it, several at a time, and so may asyncio: one thread owns the model and makes the
    tokens of all answers in common passes. Options are those of ModelOptions, which qp_engine_options in
    quipu.h explains: threads, context, device ("cpu", "cuda", "auto"), exec, chunk, kv_type, speculate,
    ... `max_sessions` is how many answers are made at a time; by default 8, or as many as there is memory
    for. Further ones wait. `schedule` has the options of ScheduleOptions.

    on_tensor(tensor) receives the tensors of every pass whose name matches one of the patterns `tensors`, such as
    "layers.3.*,logits.*": an options.Tensor with a numpy array of its own. It is called on the model's thread,
    between steps. What it raises ends the pass's answers.

    close() cancels what runs and returns when the model is closed; `with` does it at its end.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[ModelOptions]) -> None:
        for name in options:
            known_option("Model", name, ModelOptions.__annotations__)
        if is_name(path):
            path = pull(path, log=options.get("log"))
        wanted = options.get("max_sessions")
        choices = DEFAULT_SESSIONS if wanted is None else (wanted,)
        for sessions in choices:
            keep: list[Any] = []
            native = _engine_options(path, options, sessions, keep)
            try:
                adapters = Adapters(adapters_of(options), bool(options.get("merge_adapters")))
                self._engine = Engine(native, keep, adapters)
                break
            except NoMemoryError:
                if sessions == choices[-1]:
                    raise
        weakref.finalize(self, self._engine.ask_to_close).atexit = False

    @classmethod
    def from_pretrained(cls, name: str, **options: Unpack[ModelOptions]) -> Model:
        """Opens a model of Hugging Face, which is fetched where its cache has not got it: "OWNER/NAME",
        "OWNER/NAME:Q4_K_M", with or without "hf:", or a short name such as "llama3.2:1b"."""
        is_repository = "/" in name and not name.startswith("hf:") and not os.path.exists(name)
        return cls(f"hf:{name}" if is_repository else name, **options)

    @property
    def info(self) -> ModelInfo:
        """Sizes and the device."""
        with self._engine.in_use():
            self._engine.check_open()
            native = self._engine.info
            values: dict[str, Any] = {f.name: getattr(native, f.name) for f in fields(ModelInfo)}
            values["device"] = text_of(native.device)
            return ModelInfo(**values)

    @property
    def vocabulary(self) -> Vocabulary | None:
        """None where the model has none (synthetic weights)."""
        with self._engine.in_use():
            self._engine.check_open()
            pointer = lib.qp_engine_vocabulary(self._engine.pointer)
        return Vocabulary._of_engine(self._engine, pointer, self) if pointer else None

    def _need_vocabulary(self) -> Vocabulary:
        vocabulary = self.vocabulary
        if vocabulary is None:
            raise InvalidError("the model has no vocabulary: give token ids instead of text")
        return vocabulary

    def tokenize(self, text: str | bytes, *, bos: bool | None = None, special: bool = False) -> list[int]:
        """The ids of a text; see Vocabulary.tokenize."""
        return self._need_vocabulary().tokenize(text, bos=bos, special=special)

    def detokenize(self, ids: Sequence[int] | Tokens, *, special: bool = False) -> str:
        """The text of ids; see Vocabulary.detokenize."""
        return self._need_vocabulary().detokenize(ids, special=special)

    def schedule(self) -> Schedule:
        """The schedule that the machine "threads" or "serial" runs, or a GPU's megakernel."""
        def read(engine: Engine) -> bytes:
            error, out, length = ffi.new("qp_error *"), ffi.new("char **"), ffi.new("size_t *")
            check(lib.qp_engine_schedule(engine.pointer, out, length, error), error)
            return take_text(out[0], length[0])

        return Schedule(self._engine.call(read))

    def reschedule(self, schedule: Schedule | None = None, **choices: Unpack[ScheduleOptions]) -> None:
        """Gives the machines "threads" and "serial" another schedule: a Schedule, or setting, assignment,
        memory_fraction or file, as in qp_schedule_options; without any, the usual one. Logits keep
        their bits. After a failure, such as of a Schedule that is not sound, the old schedule stays."""
        if schedule is not None:
            with instance(schedule, Schedule, "schedule")._as_file() as path:
                choices["file"] = path
                return self.reschedule(**choices)
        keep: list[Any] = []
        native = _schedule(keep, choices)

        def change(engine: Engine) -> None:
            error = ffi.new("qp_error *")
            check(lib.qp_engine_reschedule(engine.pointer, native, error), error)

        self._engine.call(change)

    def session(self, *, lora: Lora = None) -> Session:
        """A new, empty sequence, when one of `max_sessions` is free."""
        return Session(self, lora=lora)

    def generate(self, prompt: str | Sequence[int] | Tokens, **options: Unpack[GenerateOptions]) -> Generation:
        """Continues a prompt. What another answer has read of its beginning is not read again. Options are
        those of GenerateOptions: the settings of Sampling, max_tokens, schema, logprobs, ..."""
        return self._generate("generate()", prompt, options, None)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Generation:
        """Answers a conversation [{"role": ..., "content": ...}, ...] by the model's template. Control
        tokens that are written in messages stay text. Options are those of ChatOptions."""
        rest: dict[str, Any] = dict(options)
        variables = rest.pop("variables", None)
        variables = {} if variables is None else dict(instance(variables, Mapping, "variables"))
        tools = rest.pop("tools", None)
        tools = () if tools is None else tools
        names = _tool_names(tools)
        if names:
            variables["tools"] = list(tools)
        prompt = self._need_vocabulary().tokenize_chat(messages, **variables)
        return self._generate("chat()", prompt, rest, None, names)

    def _generate(self, what: str, prompt: str | Sequence[int] | Tokens, options: Mapping[str, Any],
                  session: Session | None, tools: Sequence[str] | None = None) -> Generation:
        own = {name: value for name, value in options.items() if name in _OWN_OPTIONS}
        settings = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
        names = list(GenerateOptions.__annotations__)
        for name in settings:
            known_option(what, name, names)
        sampling = own.get("sampling")
        if sampling is None:
            sampling = Sampling.of(what, settings)
        elif settings:
            raise InvalidError(f"{what}: sampling takes the place of {', '.join(settings)}")
        instance(sampling, Sampling, "sampling")
        max_tokens = 0 if own.get("max_tokens") is None else whole(own["max_tokens"], "max_tokens (0: until the context is full)")
        logprobs = None if own.get("logprobs") is None else whole(own["logprobs"], "logprobs, how many likeliest tokens,")
        ids = token_array(self.tokenize(prompt) if isinstance(prompt, str) else prompt, "the prompt",
                          self._engine.vocab_size)
        if not len(ids):
            raise InvalidError("the prompt is empty: at least one token is needed to begin from")
        schema = own.get("schema")
        if schema is not None:
            if sampling.grammar is not None:
                raise InvalidError(f"{what}: schema and grammar exclude each other")
            sampling = replace(sampling, grammar=Grammar(self._need_vocabulary(), json_schema=schema))
        sampling._native(self._engine)  # raises here what is wrong with it
        uses = self._engine.adapters.uses(what, own.get("lora"))
        if session and own.get("lora") is not None and uses != session._slot.lora:
            raise InvalidError(f"{what}: a session keeps the adapters that it was opened with, session(lora=...)")
        answer = Answer(ids, sampling, max_tokens, session._slot if session else None, self._engine.context,
                        logprobs, flag(own.get("special"), "special"), tools, uses)
        return Generation(self._engine, answer, session or self, schema)

    def eval(self, inputs: Sequence[tuple[Session, Sequence[int] | Tokens]], *, every_row: bool = False,
             on_logits: Callable[[int, int, Floats], None] | None = None) -> list[Floats | None]:
        """Reads tokens of several sessions as one batch; see Session.eval. on_logits(input, token,
        row) gets views without a copy, on the model's thread; else the result has an array for each
        input."""
        engine = self._engine
        check_receiver(on_logits, "on_logits")
        pairs = [instance(pair, (tuple, list), "an input, (session, tokens),") for pair in listed(inputs, "inputs")]
        rows: list[list[Floats]] = [[] for _ in pairs]
        readers = []
        for i, pair in enumerate(pairs):
            if len(pair) != 2:
                raise WrongTypeError(f"input {i} is (session, tokens), found {pair!r:.60}")
            session, tokens = self._own(pair[0]), pair[1]
            array = token_array(tokens, f"input {i}", engine.vocab_size)
            if not len(array):
                raise InvalidError(f"input {i} has no tokens to read")

            def take(token: int, row: Floats, i: int = i) -> None:
                if on_logits is None:
                    rows[i].append(row.copy())
                else:
                    on_logits(i, token, row)

            readers.append(_Reader(session._slot, array, engine.vocab_size, every_row, take))
        if len({id(reader.slot) for reader in readers}) < len(readers):
            raise InvalidError("a session is given twice; give it all its tokens at once")
        work = _Reading(readers, engine.context)
        engine.submit(work)
        engine.wait(work)
        if on_logits is not None:
            return [None] * len(pairs)
        return [np.stack(r) if every_row else r[-1] for r in rows]

    @property
    def hidden_size(self) -> int:
        """The length of the vectors that embed() gives."""
        with self._engine.in_use():
            self._engine.check_open()
            return int(self._engine.info.hidden_size)

    def embed(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, pooling: Literal["mean", "last"] = "mean",
              normalize: bool = True) -> Floats:
        """Vectors of texts, or of lists of token ids, which are read together: float32 (len(texts),
        hidden_size); of one text, (hidden_size,). The mean of the last hidden states of its tokens, or the
        state of its last token, as models such as Qwen3-Embedding were trained; with the length 1, or as it
        is. The server's /v1/embeddings does the same."""
        if not isinstance(pooling, str) or pooling not in ("mean", "last"):
            raise InvalidError(f"pooling is 'mean' or 'last', found {pooling!r:.40}")
        hidden_size = self.hidden_size
        several: list[Any] = [texts] if isinstance(texts, str) else listed(texts, "texts")
        works = [_Embedding(token_array(self.tokenize(text) if isinstance(text, str) else text, "a text",
                                        self._engine.vocab_size), pooling == "mean", self._engine.context, hidden_size)
                 for text in several]
        self._engine.submit(*works)
        self._engine.wait(*works)
        if not works:
            return np.zeros((0, hidden_size), dtype=np.float32)
        rows = np.stack([work.vector for work in works])
        if flag(normalize, "normalize"):
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = rows / np.where(lengths == 0, 1, lengths)
        found: Floats = rows.astype(np.float32)
        return found.reshape(-1) if isinstance(texts, str) else found

    def decode(self, sessions: Sequence[Session], first: Sequence[int] | Tokens, count: int) -> Tokens:
        """`count` greedy passes over several sessions at once: int32 (count + 1, len(sessions)).
        Row 0 is `first`; each further row is what the sessions chose after the row before."""
        slots = tuple(self._own(session)._slot for session in listed(sessions, "sessions"))
        begin = token_array(first, "first", self._engine.vocab_size)
        if len(begin) != len(slots):
            raise InvalidError(f"first has a token for each of the {len(slots)} sessions, found {len(begin)}")
        count = whole(count, "count", self._engine.context)
        tokens = np.zeros((count + 1, len(slots)), dtype=np.int32)
        tokens[0] = begin
        cancel = ffi.new("int *")

        def decode(engine: Engine) -> None:
            error, pointers = ffi.new("qp_error *"), ffi.new("qp_session *[]", [slot.pointer for slot in slots])
            check(lib.qp_decode(engine.pointer, pointers, len(slots), count,
                                ffi.cast("int32_t *", tokens.ctypes.data), cancel, error), error)

        try:
            self._engine.call(decode, slots=slots)
        except BaseException:
            cancel[0] = 1
            raise
        return tokens

    def _own(self, session: Session) -> Session:
        if instance(session, Session, "a session")._model is not self:
            raise InvalidError("the session is another model's")
        return session

    def sampler(self, sampling: Sampling | None = None, **settings: Unpack[SamplingOptions]) -> Sampler:
        """Chooses the tokens of a sequence in step(). Settings are those of Sampling."""
        return Sampler(self, sampling, **settings)

    def step(self, sequences: Sequence[StepSequence]) -> list[list[int]]:
        """Makes progress for all sequences and returns the tokens that were chosen for each.

        A batch is filled with the sequences that go on, then with new tokens of the others in their
        order. Sequences may join and leave from call to call. A call raises before anything is run
        where a token, a session or the memory does not allow it.

        Until all have ended::

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
        """Cancels what runs, closes the model and its sessions, and returns when that is done."""
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tool_names(tools: object) -> list[str]:
    if not isinstance(tools, Sequence):
        raise WrongTypeError(f"tools are a list, found {tools!r:.60}")
    names = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise WrongTypeError('a tool is {"type": "function", "function": {"name": ..., "parameters": ...}}, '
                                 f"found {tool!r:.60}")
        names.append(name)
    return names


_OWN_OPTIONS = ("max_tokens", "sampling", "schema", "logprobs", "special", "lora")
