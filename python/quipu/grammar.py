"""Forms that answers are bound to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quipu._native import check, ffi, lib

if TYPE_CHECKING:
    from quipu.model import Model
    from quipu.sampling import Sampling
    from quipu.vocabulary import Vocabulary


class Grammar:
    """A form of answers: what a JSON Schema allows (a mapping, or its text), or a grammar in
    llama.cpp's notation. Without either, any object of JSON. Give it to Model.generate(),
    Session.generate() or Sampling as `grammar`.
    """

    def __init__(self, vocabulary: Vocabulary, *,
                 json_schema: Mapping[str, Any] | bool | str | None = None,
                 gbnf: str | None = None) -> None:
        if json_schema is not None and gbnf is not None:
            raise ValueError("json_schema and gbnf exclude each other")
        kind, text = lib.QP_GRAMMAR_JSON, ""
        if json_schema is not None:
            kind = lib.QP_GRAMMAR_JSON_SCHEMA
            text = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        elif gbnf is not None:
            kind, text = lib.QP_GRAMMAR_GBNF, gbnf
        data = text.encode("utf-8")
        error, out = ffi.new("qp_error *"), ffi.new("qp_grammar **")
        check(lib.qp_grammar_open(vocabulary._pointer, kind, data, len(data), out, error), error)
        self._pointer = ffi.gc(out[0], lib.qp_grammar_close)
        self._vocabulary = vocabulary  # outlives it


class Matcher:
    """The place of one text in a form, for those who step sequences themselves: give allowed() to
    Sampler.allow() before each step, and each chosen token, unless it is a stop token, to take().
    """

    def __init__(self, model: Model, sampling: Sampling) -> None:
        native, keep = sampling._native(model._pointer)
        error, out = ffi.new("qp_error *"), ffi.new("qp_matcher **")
        check(lib.qp_matcher_open(model._pointer, native, out, error), error)
        self._pointer = ffi.gc(out[0], lib.qp_matcher_close)
        self._sampling = sampling  # with the grammar, which outlives it
        self._vocab_size = model.info.vocab_size
        del keep

    def allowed(self) -> np.ndarray:
        """Which tokens may come next: an array of bool (vocab_size,). Stop tokens are allowed where
        the text may end."""
        error, out = ffi.new("qp_error *"), ffi.new("uint32_t **")
        check(lib.qp_matcher_allowed(self._pointer, out, error), error)
        words = (self._vocab_size + 31) // 32
        bits = np.frombuffer(ffi.buffer(out[0], 4 * words), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[:self._vocab_size].astype(bool)

    def take(self, token: int) -> None:
        """Appends a token that was allowed."""
        error = ffi.new("qp_error *")
        check(lib.qp_matcher_take(self._pointer, token, error), error)
