"""libquipu_net, which has what needs a network; it is opened when it is first used."""

from __future__ import annotations

import functools
from typing import Any

from quipu._native import _beside, _declarations, _find, _root, cffi, ffi


@functools.lru_cache(maxsize=1)
def net() -> tuple[Any, Any]:
    """Its ffi, with the types of quipu.h too, and the library."""
    own: Any = cffi.FFI()
    own.include(ffi)
    header = _find("quipu_net.h", "", _beside("QUIPU_HEADER", "quipu_net.h", _root / "include"))
    own.cdef(_declarations(header.read_text(encoding="utf-8")))
    library = _find("libquipu_net.so", "", _beside("QUIPU_LIBRARY", "libquipu_net.so", _root / "build"))
    return own, own.dlopen(str(library))
