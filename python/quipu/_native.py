"""libquipu through cffi: the declarations are those of quipu.h itself, which the wheel carries."""

from __future__ import annotations

import os
import re
from pathlib import Path

import cffi

_HERE = Path(__file__).resolve().parent


def _declarations(header: str) -> str:
    """What cffi parses of the header: no preprocessor lines, no C++ braces, no attributes."""
    header = re.sub(r"#ifdef __cplusplus.*?#endif", "", header, flags=re.DOTALL)
    header = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", header, flags=re.MULTILINE)
    header = re.sub(r"__attribute__\(\(.*?\)\)|\bQP_API\b", "", header)
    return header


def _find(name: str, variable: str, fallback: Path) -> Path:
    named = os.environ.get(variable)
    for path in ([Path(named)] if named else [_HERE / name, fallback]):
        if path.exists():
            return path
    raise ImportError(f"{name} is not beside the package {_HERE}; install the package with pip, or "
                      f"name the file with {variable}")


_root = _HERE.parent.parent
ffi = cffi.FFI()
ffi.cdef(_declarations(_find("quipu.h", "QUIPU_HEADER", _root / "include" / "quipu.h")
                       .read_text(encoding="utf-8")))
lib = ffi.dlopen(str(_find("libquipu.so", "QUIPU_LIBRARY", _root / "build" / "libquipu.so")))


class QuipuError(Exception):
    """What the library refused, in its own words. `status` is "QP_INVALID", "QP_IO", ..."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_name(status: int) -> str:
    return ffi.string(ffi.cast("enum qp_status", status))


def check(status: int, error) -> None:
    """Raises what a call has written into its qp_error."""
    if status == lib.QP_OK:
        return
    if status == lib.QP_NO_MEMORY:
        raise MemoryError(ffi.string(error.message).decode("utf-8", "replace"))
    raise QuipuError(status_name(status), ffi.string(error.message).decode("utf-8", "replace"))


class Handle:
    """An object of the library: `_handle` is its pointer, None after it was closed."""

    _handle = None

    @property
    def _pointer(self):
        if self._handle is None:
            raise ValueError(f"the {type(self).__name__.lower()} is closed")
        return self._handle


def set_option(native, keep: list, what: str, name: str, value) -> None:
    """Sets a member of an options struct; `keep` holds the text that it points to."""
    if not hasattr(native, name) or name == "size":
        raise TypeError(f"{what} has no option {name!r}")
    given = value
    if isinstance(value, str):
        keep.append(value := ffi.new("char[]", value.encode("utf-8")))
    try:
        setattr(native, name, value)
    except (TypeError, OverflowError) as problem:
        kind = ffi.typeof(native).item.fields
        expected = next(field.type.cname for key, field in kind if key == name)
        raise type(problem)(f"{what}: option {name!r} is a {expected}, found {given!r}") from None


def sized(struct: str, **values):
    """A struct that begins with its size, as quipu.h has it."""
    return ffi.new(f"{struct} *", {"size": ffi.sizeof(struct), **values})


def take_text(pointer, length: int | None = None) -> bytes:
    """The text that the library gave, which is freed."""
    try:
        return ffi.string(pointer) if length is None else ffi.buffer(pointer, length)[:]
    finally:
        lib.qp_free(pointer)
