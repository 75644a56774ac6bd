"""Text of tokens as they come: whole characters, and nothing that may begin a stop text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Bytes in, certain text out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._pending = ""
        self.stopped = False
        """Whether a stop text has come; it is not part of the text."""

    def push(self, data: bytes) -> str:
        return self._certain(self._decoder.decode(data))

    def finish(self) -> str:
        """What is left at the end."""
        rest = "" if self.stopped else self._certain(self._decoder.decode(b"", final=True))
        rest += self._pending
        self._pending = ""
        return rest

    def _certain(self, text: str) -> str:
        text = self._pending + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._pending = True, ""
            return text[:min(found)]
        held = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        end = len(text) - held
        self._pending = text[end:]
        return text[:end]
