"""Models of Hugging Face, in the cache of huggingface_hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from quipu._native import check, check_receiver, path_bytes, take_text, text_of
from quipu._wait import call_apart


def is_name(model: str | os.PathLike[str]) -> bool:
    """Whether it is to be looked up: "hf:...", or a short name such as "llama3.2:1b" without a file of that name."""
    text = os.fsdecode(path_bytes(model, "a model"))
    if text.startswith("hf:"):
        return True
    return not os.path.exists(text) and re.fullmatch(r"(?!synthetic:)[\w.-]+(:[\w.-]+)?", text) is not None \
        and not text.endswith((".gguf", ".json"))


def pull(model: str | os.PathLike[str], *, log: Callable[[str], None] | None = None) -> str:
    """The path of a model, which is fetched where the cache has not got it: "hf:OWNER/NAME",
    "hf:OWNER/NAME:Q4_K_M", or one of the short names that `quipu pull` lists. A path stays as it is. `log`
    receives lines of progress. The environment is that of huggingface_hub: HF_HOME, HF_TOKEN, ..."""
    from quipu._net import net

    check_receiver(log, "log")
    net_ffi, net_lib = net()
    text, cancel = net_ffi.new("char[]", path_bytes(model, "a model")), net_ffi.new("int *")
    out, error = net_ffi.new("char **"), net_ffi.new("qp_error *")

    def show(_context: Any, line: Any, _finished: bool) -> None:
        if log is not None:
            log(text_of(line))

    options = net_ffi.new("qp_pull_options *", {"size": net_ffi.sizeof("qp_pull_options"), "model": text,
                                                "cancel": cancel})
    options.progress = callback = net_ffi.callback("void(void *, const char *, bool)", show)
    status = call_apart(lambda: int(net_lib.qp_pull(options, out, error)), cancel)  # what has arrived stays
    del callback
    check(status, error)
    return os.fsdecode(take_text(out[0]))
