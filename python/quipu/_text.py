"""Text of an answer: the library's qp_text_stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quipu._native import Tokens, check, ffi, lib, sized
from quipu._owner import Owner


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, as the model has written it."""

    name: str
    arguments: str
    """An object of JSON, for json.loads(); cut off or damaged if `broken`."""
    broken: bool
    """Whether the call is cut off, or is not JSON: it is not to be made."""
    text: str
    """All that the model wrote for it."""


class TextStream:
    """Tokens of one answer in; its text, thoughts and calls of tools out. For the engine's thread; others may
    read `thoughts` and `calls`, which only grow."""

    def __init__(self, owner: Owner, vocabulary: Any, sampling: Any, prompt: Tokens, tools: Sequence[str],
                 thinking: bool, special: bool) -> None:
        self._content = ""
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        names = [ffi.new("char[]", name.encode("utf-8")) for name in tools]
        pointers = ffi.new("char *[]", names or [ffi.NULL])
        options = sized("qp_text_stream_options", sampling=sampling, tools=pointers, n_tools=len(names),
                        thinking=thinking, special=special, prompt=ffi.from_buffer("int32_t[]", prompt),
                        n_prompt=len(prompt))
        out, self._error = ffi.new("qp_text_stream **"), ffi.new("qp_error *")
        check(lib.qp_text_stream_open(vocabulary, options, out, self._error), self._error)
        self._native = owner.own(out[0], lib.qp_text_stream_close, "text stream")
        self._piece = sized("qp_text_piece")
        self._name, self._arguments = "", b""

    def take(self) -> str:
        """The text that has become certain: whole characters, and nothing that may begin a stop text."""
        content, self._content = self._content, ""
        return content

    def add(self, token: int) -> bool:
        """False: the answer has ended, at a stop token or a stop text."""
        stream = self._native.pointer
        check(lib.qp_text_stream_add(stream, token, self._error), self._error)
        self._read(stream)
        return not lib.qp_text_stream_ended(stream, ffi.NULL, ffi.NULL)

    def end(self) -> None:
        """There are no further tokens: what was held back becomes certain."""
        stream = self._native.pointer
        check(lib.qp_text_stream_end(stream, self._error), self._error)
        self._read(stream)
        self._native.close()

    def _read(self, stream: Any) -> None:
        piece = self._piece
        while lib.qp_text_stream_next(stream, piece):
            data = bytes(ffi.buffer(piece.text, piece.length)) if piece.length else b""
            if piece.kind == lib.QP_TEXT_ARGUMENTS:
                self._arguments += data
                continue
            text = data.decode("utf-8", "replace")
            if piece.kind == lib.QP_TEXT_CONTENT:
                self._content += text
            elif piece.kind == lib.QP_TEXT_THINKING:
                self.thoughts.append(text)
            elif piece.kind == lib.QP_TEXT_CALL:
                self._name, self._arguments = text, b""
            else:
                arguments = self._arguments.decode("utf-8", "replace")
                self.calls.append(ToolCall(self._name, arguments, bool(piece.broken), text))
