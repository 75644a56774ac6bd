"""libquipu_net, which has what needs a network; it is opened when it is first used."""

from __future__ import annotations

import functools
from typing import Any

from quipu._native import beside, cffi, declarations, ffi, header, library


@functools.lru_cache(maxsize=1)
def net() -> tuple[Any, Any]:
    """Its ffi, with the types of quipu.h too, and the library."""
    own: Any = cffi.FFI()
    own.include(ffi)
    own.cdef(declarations(beside(header, "quipu_net.h")))
    return own, own.dlopen(str(beside(library, "libquipu_net.so")))
