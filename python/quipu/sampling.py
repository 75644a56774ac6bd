"""How tokens are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from quipu._native import Handle, check, ffi, lib, sized

if TYPE_CHECKING:
    from quipu.grammar import Grammar
    from quipu.model import Model


@dataclass
class Sampling:
    """How tokens are chosen. None leaves a setting as the model's files have it."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None
    """The form of the answer; None: any text."""

    _SETTINGS = {"temperature": "QP_TEMPERATURE", "top_k": "QP_TOP_K", "top_p": "QP_TOP_P",
                 "min_p": "QP_MIN_P", "repetition_penalty": "QP_REPETITION_PENALTY",
                 "presence_penalty": "QP_PRESENCE_PENALTY",
                 "frequency_penalty": "QP_FREQUENCY_PENALTY", "seed": "QP_SEED"}

    def _native(self, engine) -> tuple[Any, Any]:
        """A qp_sampling, with what it points to."""
        error, out = ffi.new("qp_error *"), sized("qp_sampling")
        check(lib.qp_sampling_defaults(engine, out, error), error)
        for name, setting in self._SETTINGS.items():
            value = getattr(self, name)
            if value is not None:
                check(lib.qp_sampling_set(out, getattr(lib, setting), float(value),
                                          lib.QP_FROM_REQUEST, error), error)
        texts = [ffi.new("char[]", text.encode("utf-8")) for text in self.stop]
        stops = ffi.new("char *[]", texts or [ffi.NULL])
        biases = ffi.new("qp_logit_bias[]", [{"token": token, "bias": bias}
                                             for token, bias in self.logit_bias.items()] or 1)
        out.stops, out.n_stops = stops, len(texts)
        out.logit_bias, out.n_logit_bias = biases, len(self.logit_bias)
        if self.grammar is not None:
            out.grammar = self.grammar._pointer
        return out, (texts, stops, biases)


class Sampler(Handle):
    """Chooses the tokens of one sequence of Model.step(): settings, biases, what the answer has had
    so far, which tokens are allowed. Stop texts of `sampling` have no effect: steps make tokens."""

    def __init__(self, model: Model, sampling: Sampling | None = None, **settings: Any) -> None:
        native, keep = (sampling or Sampling(**settings))._native(model._pointer)
        error, out = ffi.new("qp_error *"), ffi.new("qp_sampler **")
        check(lib.qp_sampler_open(model._pointer, native, out, error), error)
        self._handle = out[0]
        self._vocab_size = model.info.vocab_size
        self.stop_tokens: frozenset[int] = frozenset(native.stop_tokens[0:native.n_stop_tokens])
        """The model's ends of text and of turn."""
        del keep

    def allow(self, tokens: Iterable[int] | np.ndarray | None) -> None:
        """Which tokens may be chosen from now on: ids, or an array of bool (vocab_size,). None: all.
        While some are excluded, a step chooses one token."""
        if tokens is None:
            error = ffi.new("qp_error *")
            check(lib.qp_sampler_allow(self._pointer, ffi.NULL, error), error)
            return
        mask = np.zeros((self._vocab_size + 31) // 32 * 32, dtype=bool)
        if isinstance(tokens, np.ndarray) and tokens.dtype == bool:
            if tokens.shape != (self._vocab_size,):
                raise ValueError(f"a mask has the shape ({self._vocab_size},), found {tokens.shape}")
            mask[:self._vocab_size] = tokens
        else:
            ids = np.fromiter(tokens, dtype=np.int64)
            if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
                raise IndexError(f"allowed tokens are 0 to {self._vocab_size - 1}, found "
                                 f"{ids.min()} to {ids.max()}")
            mask[ids] = True
        bits = np.packbits(mask, bitorder="little")
        error = ffi.new("qp_error *")
        check(lib.qp_sampler_allow(self._pointer, ffi.from_buffer("uint32_t[]", bits), error), error)

    def close(self) -> None:
        if self._handle is not None:
            lib.qp_sampler_close(self._handle)
        self._handle = None

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
