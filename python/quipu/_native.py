"""libquipu through cffi: the declarations are those of quipu.h itself, which the wheel carries."""

from __future__ import annotations

import difflib
import importlib
import operator
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
    paths = [Path(named)] if named else [_HERE / name, fallback]
    for path in paths:
        if path.exists():
            return path
    raise ImportError(f"{name} is not beside the package {_HERE} or at {paths[-1]}; install the package with pip, or "
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

T = TypeVar("T")
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


def utf8(text: object, what: str) -> bytes:
    """The bytes of a text for the library, which ends texts at a NUL."""
    if not isinstance(text, str):
        raise WrongTypeError(f"{what} is a str, found {text!r:.60}")
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise WrongTypeError(f"{what} holds Unicode characters: {problem}") from None
    if b"\0" in data:
        raise WrongTypeError(f"{what} has no NUL character, found {text!r:.60}")
    return data


def path_bytes(path: object, what: str = "a path") -> bytes:
    """The bytes of a file's name."""
    try:
        data = os.fsencode(path)  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        raise WrongTypeError(f"{what} is a str or os.PathLike, found {path!r:.60}") from None
    if b"\0" in data:
        raise WrongTypeError(f"{what} has no NUL character, found {path!r:.60}")
    return data


def whole(value: object, what: str, most: int = (1 << 63) - 1) -> int:
    """A whole number from 0 to `most`."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= most:
        raise WrongTypeError(f"{what} is a whole number, 0 or more, found {value!r:.40}")
    return number


def flag(value: object, what: str) -> bool:
    """Whether a value is true."""
    try:
        return bool(value)
    except ValueError:
        raise WrongTypeError(f"{what} is True or False, found {value!r:.60}") from None


def instance(value: T, kind: type[Any] | tuple[type[Any], ...], what: str) -> T:
    """The value, if it is of the class."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise WrongTypeError(f"{what} is a {' or '.join(k.__name__ for k in kinds)}, found {value!r:.60}")
    return value


def listed(value: Iterable[T], what: str) -> list[T]:
    """A list of what may be iterated over, and is no text."""
    try:
        if not isinstance(value, (str, bytes, Mapping)):
            return list(value)
    except TypeError:
        pass
    raise WrongTypeError(f"{what} are a list, found {value!r:.60}")


def check_receiver(function: object, what: str) -> None:
    """Refuses what is neither a function nor None."""
    if function is not None and not callable(function):
        raise WrongTypeError(f"{what} is a function, found {function!r:.60}")


def set_option(native: Any, keep: list[Any], what: str, name: str, value: object) -> None:
    """Sets a member of an options struct; `keep` holds the text that it points to."""
    given = value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        keep.append(value := ffi.new("char[]", utf8(value, f"{what}: option {name!r}")))
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
