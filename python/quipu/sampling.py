"""How tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quipu._native import Tokens, check, ffi, instance, known_option, lib, token_array, utf8
from quipu.errors import InvalidError, WrongTypeError
from quipu.grammar import Grammar

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from quipu._engine import Engine
    from quipu.model import Model
    from quipu.options import SamplingOptions

_SETTINGS = {"temperature": "QP_TEMPERATURE", "top_k": "QP_TOP_K", "top_p": "QP_TOP_P", "min_p": "QP_MIN_P",
             "repetition_penalty": "QP_REPETITION_PENALTY", "presence_penalty": "QP_PRESENCE_PENALTY",
             "frequency_penalty": "QP_FREQUENCY_PENALTY", "seed": "QP_SEED",
             "typical_p": "QP_TYPICAL_P", "top_n_sigma": "QP_TOP_N_SIGMA", "min_keep": "QP_MIN_KEEP",
             "xtc_probability": "QP_XTC_PROBABILITY", "xtc_threshold": "QP_XTC_THRESHOLD", "dry_multiplier": "QP_DRY_MULTIPLIER",
             "dry_base": "QP_DRY_BASE", "dry_allowed_length": "QP_DRY_ALLOWED_LENGTH", "dry_penalty_last_n": "QP_DRY_PENALTY_LAST_N",
             "mirostat": "QP_MIROSTAT", "mirostat_tau": "QP_MIROSTAT_TAU", "mirostat_eta": "QP_MIROSTAT_ETA"}


@dataclass
class Sampling:
    """How tokens are chosen. None leaves a setting as the model's files have it."""

    temperature: float | None = None
    """0: always the likeliest token."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    """The same seed makes the same choices from the same logits."""
    typical_p: float | None = None
    top_n_sigma: float | None = None
    min_keep: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    stop: str | Sequence[str] = ()
    """A text, or texts, at which the answer ends and which are not part of it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None
    """The form of the answer; None: any text."""
    stop_tokens: Sequence[int] | None = None
    """Tokens at which the answer ends; None: the model's ends of text and of turn; (): none."""

    @classmethod
    def of(cls, what: str, options: Mapping[str, Any]) -> Sampling:
        """From keyword arguments of the function `what`."""
        for name in options:
            known_option(what, name, cls.__dataclass_fields__)
        return cls(**options)

    @property
    def stops(self) -> list[str]:
        """The stop texts."""
        if isinstance(self.stop, str) and self.stop:
            return [self.stop]
        if isinstance(self.stop, (list, tuple)) and all(isinstance(text, str) and text for text in self.stop):
            return list(self.stop)
        raise WrongTypeError(f"stop is a text or a list of texts, none of them empty, found {self.stop!r:.60}")

    def _native(self, engine: Engine) -> tuple[Any, Any]:
        """A qp_sampling, with what it points to."""
        error, out = ffi.new("qp_error *"), ffi.new("qp_sampling *", engine.sampling_defaults[0])
        for name, setting in _SETTINGS.items():
            value = getattr(self, name)
            if value is None:
                continue
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise WrongTypeError(f"{name} is a number, found {value!r:.60}") from None
            check(lib.qp_sampling_set(out, getattr(lib, setting), number, lib.QP_FROM_REQUEST, error), error)
        bias_of = instance(self.logit_bias, Mapping, "logit_bias")
        token_array(list(bias_of), "logit_bias", engine.vocab_size)
        try:
            biases = ffi.new("qp_logit_bias[]", [{"token": int(token), "bias": float(bias)}
                                                 for token, bias in bias_of.items()] or 1)
        except (TypeError, ValueError, OverflowError):
            raise WrongTypeError(f"logit_bias has a number for each token, found {bias_of!r:.60}") from None
        texts = [ffi.new("char[]", utf8(text, "a stop text")) for text in self.stops]
        stops = ffi.new("char *[]", texts or [ffi.NULL])
        out.stops, out.n_stops = stops, len(texts)
        out.logit_bias, out.n_logit_bias = biases, len(self.logit_bias)
        if self.grammar is not None:
            instance(self.grammar, Grammar, "grammar")
            out.grammar = self.grammar._native.pointer
        if self.stop_tokens is not None:
            _set_stop_tokens(out, token_array(self.stop_tokens, "stop_tokens", engine.vocab_size))
        return out, (texts, stops, biases, self.grammar)


def _set_stop_tokens(out: Any, tokens: Tokens) -> None:
    if len(tokens) > lib.QP_MAX_STOP_TOKENS:
        raise InvalidError(f"there are at most {lib.QP_MAX_STOP_TOKENS} stop_tokens, found {len(tokens)}")
    out.stop_tokens[0:len(tokens)] = tokens.tolist()
    out.n_stop_tokens = len(tokens)


class Sampler:
    """Chooses the tokens of one sequence of Model.step(): settings, biases, what the answer has had
    so far, which tokens are allowed. Stop texts of `sampling` have no effect: steps make tokens."""

    def __init__(self, model: Model, sampling: Sampling | None = None, **settings: Unpack[SamplingOptions]) -> None:
        if sampling is None:
            sampling = Sampling.of("sampler()", settings)
        elif settings:
            raise InvalidError(f"sampler(): sampling takes the place of {', '.join(settings)}")
        self._open(model._engine, instance(sampling, Sampling, "sampling"))

    @classmethod
    def _of_engine(cls, engine: Engine, sampling: Sampling) -> Sampler:
        out = cls.__new__(cls)
        out._open(engine, sampling)
        return out

    def _open(self, engine: Engine, sampling: Sampling) -> None:
        native, keep = sampling._native(engine)

        def open_sampler(engine: Engine) -> Any:
            error, out = ffi.new("qp_error *"), ffi.new("qp_sampler **")
            check(lib.qp_sampler_open(engine.pointer, native, out, error), error)
            return engine.own(out[0], lib.qp_sampler_close, "sampler")

        self._native = engine.call(open_sampler)
        self._vocab_size = engine.vocab_size
        self._mask: tuple[Any] | None = None
        self.stop_tokens: frozenset[int] = frozenset(native.stop_tokens[0:native.n_stop_tokens])
        """The model's ends of text and of turn."""
        del keep

    def _prepare(self) -> Any:
        """Its pointer, for the engine's thread."""
        pointer = self._native.pointer
        if self._mask is not None:
            (bits,), self._mask = self._mask, None
            error = ffi.new("qp_error *")
            native = ffi.NULL if bits is None else ffi.from_buffer("uint32_t[]", bits)
            check(lib.qp_sampler_allow(pointer, native, error), error)
        return pointer

    def allow(self, tokens: Iterable[int] | npt.NDArray[Any] | None) -> None:
        """Which tokens may be chosen from the next step on: ids, or an array of bool (vocab_size,). None:
        all. While some are excluded, a step chooses one token."""
        self._native.pointer  # raises if it is closed
        if tokens is None:
            self._mask = (None,)
            return
        mask = np.zeros((self._vocab_size + 31) // 32 * 32, dtype=bool)
        if isinstance(tokens, np.ndarray) and tokens.dtype == bool:
            if tokens.shape != (self._vocab_size,):
                raise WrongTypeError(f"a mask has the shape ({self._vocab_size},), found {tokens.shape}")
            mask[:self._vocab_size] = tokens
        else:
            mask[token_array(tokens, "the allowed tokens", self._vocab_size)] = True
        self._mask = (np.packbits(mask, bitorder="little"),)

    def close(self) -> None:
        """Frees it; it cannot choose further tokens."""
        self._native.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
