"""Forms that answers are bound to."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quipu._native import check, ffi, instance, lib, utf8, whole
from quipu.errors import InvalidError, WrongTypeError
from quipu.vocabulary import Vocabulary

if TYPE_CHECKING:
    from quipu._engine import Engine
    from quipu.model import Model
    from quipu.options import Schema
    from quipu.sampling import Sampling


def schema_text(schema: Schema) -> str:
    """The JSON Schema as text: of a mapping, a text, or a class of pydantic."""
    if isinstance(schema, str):
        return schema
    for name in ("model_json_schema", "schema"):  # pydantic 2, and 1
        if isinstance(schema, type) and hasattr(schema, name):
            return json.dumps(getattr(schema, name)())
    try:
        return json.dumps(schema)
    except TypeError:
        raise WrongTypeError("a schema is a JSON Schema, as a mapping or a text, or a class of pydantic, found "
                             f"{schema!r:.60}") from None


class Grammar:
    """A form of answers: what a JSON Schema allows (a mapping, its text, or a class of pydantic), or a
    grammar in llama.cpp's notation. Without either, any object of JSON. Give it to Model.generate(),
    Session.generate() or Sampling as `grammar`.
    """

    def __init__(self, vocabulary: Vocabulary, *, json_schema: Schema | None = None,
                 gbnf: str | None = None) -> None:
        if json_schema is not None and gbnf is not None:
            raise InvalidError("json_schema and gbnf exclude each other")
        kind, text = lib.QP_GRAMMAR_JSON, ""
        if json_schema is not None:
            kind, text = lib.QP_GRAMMAR_JSON_SCHEMA, schema_text(json_schema)
        elif gbnf is not None:
            kind, text = lib.QP_GRAMMAR_GBNF, gbnf
        instance(vocabulary, Vocabulary, "the vocabulary of a grammar")
        data = utf8(text, "a grammar")
        error, out = ffi.new("qp_error *"), ffi.new("qp_grammar **")
        with vocabulary._owner.in_use():
            check(lib.qp_grammar_open(vocabulary._pointer, kind, data, len(data), out, error), error)
            self._native = vocabulary._owner.own(out[0], lib.qp_grammar_close, "grammar")
        self._vocabulary = vocabulary  # outlives it


class Matcher:
    """The place of one text in a form, for those who step sequences themselves: give allowed() to
    Sampler.allow() before each step, and each chosen token, unless it is a stop token, to take().
    """

    def __init__(self, model: Model, sampling: Sampling) -> None:
        self._open(model._engine, sampling)

    @classmethod
    def _of_engine(cls, engine: Engine, sampling: Sampling) -> Matcher:
        out = cls.__new__(cls)
        out._open(engine, sampling)
        return out

    def _open(self, engine: Engine, sampling: Sampling) -> None:
        from quipu.sampling import Sampling

        instance(sampling, Sampling, "the sampling of a matcher")
        native, self._keep = sampling._native(engine)  # with the grammar, which outlives it

        def open_matcher(engine: Engine) -> Any:
            error, out = ffi.new("qp_error *"), ffi.new("qp_matcher **")
            check(lib.qp_matcher_open(engine.pointer, native, out, error), error)
            return engine.own(out[0], lib.qp_matcher_close, "matcher")

        self._native = engine.call(open_matcher)
        self._engine, self._lock = engine, threading.Lock()

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Which tokens may come next: an array of bool (vocab_size,). Stop tokens are allowed where
        the text may end."""
        error, out = ffi.new("qp_error *"), ffi.new("uint32_t **")
        words = (self._engine.vocab_size + 31) // 32
        with self._engine.in_use(), self._lock:
            check(lib.qp_matcher_allowed(self._native.pointer, out, error), error)
            bits = np.frombuffer(ffi.buffer(out[0], 4 * words), dtype=np.uint8).copy()
        return np.unpackbits(bits, bitorder="little")[:self._engine.vocab_size].astype(bool)

    def take(self, token: int) -> None:
        """Appends a token that was allowed."""
        error = ffi.new("qp_error *")
        with self._engine.in_use(), self._lock:
            check(lib.qp_matcher_take(self._native.pointer, whole(token, "a token", (1 << 31) - 1), error), error)
