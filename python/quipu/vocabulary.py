"""Tokenizer and chat template of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quipu._native import Tokens, check, ffi, flag, instance, lib, path_bytes, take_text, text_of, token_array, whole
from quipu._owner import Owner
from quipu.errors import WrongTokenError, WrongTypeError


def _conversation(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> bytes:
    if isinstance(messages, (str, Mapping)):
        raise WrongTypeError('messages are a list of {"role": ..., "content": ...}, '
                             f"found {messages!r:.40}")
    try:
        return json.dumps({"messages": list(messages), **variables}).encode("utf-8")
    except TypeError as problem:
        raise WrongTypeError(f"messages and variables hold what JSON can say: {problem}") from None


class Vocabulary:
    """Turns text into token ids and back, and conversations into prompts.

    `path` is a GGUF file or a folder with tokenizer files. The vocabulary of a Model is
    `Model.vocabulary`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        error, out = ffi.new("qp_error *"), ffi.new("qp_vocabulary **")
        check(lib.qp_vocabulary_open(path_bytes(path), out, error), error)
        self._owner = Owner()
        self._keep: object = None
        self._native = self._owner.own(out[0], lib.qp_vocabulary_close, "vocabulary")

    @classmethod
    def _of_engine(cls, owner: Owner, pointer: Any, keep: object) -> Vocabulary:
        """That of a model; `keep`: stays open as long as it."""
        out = cls.__new__(cls)
        out._owner, out._keep = owner, keep
        out._native = owner.own(pointer, lambda _: None, "vocabulary")
        return out

    @property
    def _pointer(self) -> Any:
        return self._native.pointer

    def tokenize(self, text: str | bytes, *, bos: bool | None = None,
                 special: bool = False) -> list[int]:
        """The ids of a text. `bos`: begin with the BOS token; None: as the model wants it.
        `special`: control tokens that are written in the text become their ids."""
        try:
            data = text.encode("utf-8") if isinstance(text, str) else bytes(memoryview(text))
        except TypeError:
            raise WrongTypeError(f"a text is str or bytes-like, found {text!r:.40}") from None
        except UnicodeEncodeError as problem:
            raise WrongTypeError(f"a text holds Unicode characters: {problem}") from None
        flags = lib.QP_BOS_DEFAULT if bos is None else lib.QP_BOS_ALWAYS if flag(bos, "bos") else lib.QP_BOS_NEVER
        if flag(special, "special"):
            flags |= lib.QP_SPECIAL
        error, out = ffi.new("qp_error *"), ffi.new("qp_tokens *")
        try:
            with self._owner.in_use():
                check(lib.qp_tokenize(self._pointer, data, len(data), flags, out, error), error)
            return list(ffi.unpack(out.data, out.count)) if out.count else []
        finally:
            lib.qp_tokens_free(out)

    def detokenize(self, ids: Sequence[int] | Tokens, *, special: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        error, out, length = ffi.new("qp_error *"), ffi.new("char **"), ffi.new("size_t *")
        tokens = token_array(ids, "ids")
        with self._owner.in_use():
            check(lib.qp_detokenize(self._pointer, ffi.from_buffer("int32_t[]", tokens), len(tokens),
                                    lib.QP_SPECIAL if flag(special, "special") else 0, out, length, error), error)
        return take_text(out[0], length[0]).decode("utf-8", "replace")

    def __len__(self) -> int:
        """The number of ids. A model can have more rows of logits; see ModelInfo.vocab_size."""
        with self._owner.in_use():
            return int(lib.qp_vocabulary_size(self._pointer))

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for in a text, which need not be whole UTF-8 sequences.
        Control tokens give their name."""
        if not 0 <= instance(token, (int, np.integer), "a token") < len(self):
            raise WrongTokenError(f"token {token} is outside the vocabulary of {len(self)} tokens")
        length = ffi.new("size_t *")
        with self._owner.in_use():
            data = lib.qp_token_piece(self._pointer, token, length)
            return bytes(ffi.buffer(data, length[0])[:]) if length[0] else b""

    def is_control(self, token: int) -> bool:
        """Whether a token is never text but marks its structure, such as BOS."""
        with self._owner.in_use():
            return bool(lib.qp_token_is_control(self._pointer, whole(token, "a token", (1 << 31) - 1)))

    def _special(self, role: int) -> int | None:
        with self._owner.in_use():
            token = int(lib.qp_special_token(self._pointer, role))
        return token if token >= 0 else None

    @property
    def bos(self) -> int | None:
        """The token that begins a text; None where the model names none."""
        return self._special(lib.QP_ROLE_BOS)

    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._special(lib.QP_ROLE_EOS)

    @property
    def eot(self) -> int | None:
        """The token that ends a turn of a conversation."""
        return self._special(lib.QP_ROLE_EOT)

    @property
    def unknown(self) -> int | None:
        """The token that stands for text without a token."""
        return self._special(lib.QP_ROLE_UNKNOWN)

    @property
    def padding(self) -> int | None:
        """The token that fills up batches."""
        return self._special(lib.QP_ROLE_PADDING)

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template."""
        with self._owner.in_use():
            text = lib.qp_chat_template(self._pointer)
            return text_of(text) if text else None

    def render_chat(self, messages: Sequence[Mapping[str, Any]], *,
                    add_generation_prompt: bool = True, **variables: Any) -> str:
        """A conversation as the text that the model reads. Further variables (`tools`, ...) go to
        the template."""
        value = _conversation(messages, variables)
        error, out = ffi.new("qp_error *"), ffi.new("char **")
        with self._owner.in_use():
            check(lib.qp_render_chat(self._pointer, value, len(value), flag(add_generation_prompt, "add_generation_prompt"),
                                     out, error), error)
        return take_text(out[0]).decode("utf-8", "replace")

    def tokenize_chat(self, messages: Sequence[Mapping[str, Any]], *,
                      add_generation_prompt: bool = True, special: bool = False,
                      **variables: Any) -> list[int]:
        """The tokens of a conversation. Control tokens that are written in messages stay text, so
        that a message cannot end its own turn; with `special` they become their ids."""
        value = _conversation(messages, variables)
        error, out = ffi.new("qp_error *"), ffi.new("qp_tokens *")
        try:
            with self._owner.in_use():
                check(lib.qp_tokenize_chat(self._pointer, value, len(value),
                                           flag(add_generation_prompt, "add_generation_prompt"),
                                           lib.QP_SPECIAL if flag(special, "special") else 0, out, error), error)
            return list(ffi.unpack(out.data, out.count)) if out.count else []
        finally:
            lib.qp_tokens_free(out)
