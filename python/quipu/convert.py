"""GGUF files of models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from quipu._native import check, ffi, known_option, lib, path_bytes, set_option, sized
from quipu._wait import call_apart
from quipu.hub import is_name, pull
from quipu.model import _adapters, _set_log
from quipu.options import ConvertOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def convert(model: str | os.PathLike[str], out: str | os.PathLike[str], **options: Unpack[ConvertOptions]) -> None:
    """Writes a model, which is named as for Model, with its sizes, vocabulary and chat template as a GGUF file that
    llama.cpp reads too. The file appears whole or not at all. Options are those of ConvertOptions, which
    qp_convert_options in quipu.h explains: type ("BF16", "Q8_0", "Q4_K_M", ...; without one types stay as they
    are), pure, clamp, threads, adapters, log."""
    if is_name(model):
        model = pull(model, log=options.get("log"))
    keep: list[Any] = []
    native, cancel = sized("qp_convert_options"), ffi.new("int *")
    paths: dict[str, Any] = {"model": os.fsdecode(path_bytes(model, "a model")), "out": os.fsdecode(path_bytes(out))}
    for name, value in {**options, **paths}.items():
        known_option("convert()", name, [*ConvertOptions.__annotations__, *paths])
        if name == "log":
            _set_log(native, value, keep)
        elif name == "adapters":
            native.adapters, native.n_adapters = _adapters(keep, options)
        else:
            set_option(native, keep, "convert()", name, value)
    native.cancel, error = cancel, ffi.new("qp_error *")
    check(call_apart(lambda: int(lib.qp_convert(native, error)), cancel), error)
