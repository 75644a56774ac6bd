"""libquipu through cffi: the declarations are those of quipu.h itself, which the wheel carries."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quipu.errors import InvalidError, WrongTokenError, WrongTypeError, error_of

cffi: Any = importlib.import_module("cffi")  # which has types only where types-cffi is installed
_HERE = Path(__file__).resolve().parent


def declarations(path: Path) -> str:
    """What cffi parses of a header: no preprocessor lines, no C++ braces, no attributes."""
    header = path.read_text(encoding="utf-8")
    header = re.sub(r"#ifdef __cplusplus.*?#endif", "", header, flags=re.DOTALL)
    header = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", header, flags=re.MULTILINE)
    header = re.sub(r"__attribute__\(\(.*?\)\)|\bQP_API\b", "", header)
    return header


def _find(name: str, variable: str, fallback: Path) -> Path:
    named = os.environ.get(variable)
    for path in ([Path(named)] if named else [_HERE / name, fallback]):
        if path.exists():
            return path
    raise ImportError(f"{name} is not beside the package {_HERE} or at {path}; install the package with pip, or "
                      f"name the file with {variable}")


def beside(file: Path, name: str) -> Path:
    """The file of that name in the folder of another one."""
    path = file.with_name(name)
    if not path.exists():
        raise ImportError(f"{path} is missing, which belongs beside {file.name}; install the package with pip")
    return path


_root = _HERE.parent.parent
ffi: Any = cffi.FFI()
header = _find("quipu.h", "QUIPU_HEADER", _root / "include" / "quipu.h")
for _path in (beside(header, "quipu_status.h"), header):
    ffi.cdef(declarations(_path))
library = _find("libquipu.so", "QUIPU_LIBRARY", _root / "build" / "libquipu.so")
lib: Any = ffi.dlopen(str(library))

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def text_of(pointer: Any) -> str:
    """The str of a NUL-terminated text."""
    return str(ffi.string(pointer).decode("utf-8", "replace"))


def check(status: int, error: Any) -> None:
    """Raises what a call has written into its qp_error."""
    if status != lib.QP_OK:
        raise error_of(ffi.string(ffi.cast("enum qp_status", status)), text_of(error.message))


def known_option(what: str, name: str, names: Iterable[str]) -> None:
    """Refuses an option that is not one of the names."""
    names = list(names)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else "it has " + ", ".join(names)
    raise WrongTypeError(f"{what} has no option {name!r}; {hint}")


def set_option(native: Any, keep: list[Any], what: str, name: str, value: object) -> None:
    """Sets a member of an options struct; `keep` holds the text that it points to."""
    given = value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        keep.append(value := ffi.new("char[]", value.encode("utf-8")))
    elif isinstance(value, np.generic):
        value = value.item()
    elif value is None:
        return
    try:
        setattr(native, name, value)
    except (TypeError, OverflowError):
        kind = ffi.typeof(native).item.fields
        expected = next(field.type.cname for key, field in kind if key == name)
        raise WrongTypeError(f"{what}: option {name!r} is a {expected}, found {given!r}") from None


def sized(struct: str, **values: Any) -> Any:
    """A struct that begins with its size, as quipu.h has it."""
    return ffi.new(f"{struct} *", {"size": ffi.sizeof(struct), **values})


def take_text(pointer: Any, length: int | None = None) -> bytes:
    """The text that the library gave, which is freed."""
    try:
        return bytes(ffi.string(pointer) if length is None else ffi.buffer(pointer, length)[:])
    finally:
        lib.qp_free(pointer)


def token_array(tokens: object, what: str = "tokens", vocab_size: int | None = None) -> Tokens:
    """Token ids as int32 (n,): of a list, any sequence, or an array of whole numbers."""
    try:
        array = np.asarray(tokens if isinstance(tokens, np.ndarray) else list(tokens))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise WrongTypeError(f"{what} must be token ids, such as [1, 15], found {tokens!r:.60}") from None
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise WrongTypeError(f"{what} must be whole numbers in one dimension, such as [1, 15], found "
                             f"{tokens!r:.60}")
    most = vocab_size if vocab_size is not None else 1 << 31
    for index in np.flatnonzero((array < 0) | (array >= most))[:1]:
        raise WrongTokenError(f"{what}: expected ids of the model's vocabulary, 0 to {most - 1}, found "
                              f"{array[index]} at place {index}")
    return array.astype(np.int32)


def closed(what: str) -> InvalidError:
    return InvalidError(f"the {what} is closed")
