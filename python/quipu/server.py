"""The server of `quipu serve`, inside the process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quipu._native import check, known_option, utf8
from quipu._wait import Watched
from quipu.errors import InvalidError
from quipu.options import ModelOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Server:
    """A server that runs: `url` is its address. It has its own copy of the model. close(), the end of `with`
    or the end of the program ends it."""

    def __init__(self, native: Any, keep: object, host: str) -> None:
        from quipu._net import net

        self.port: int = net()[1].qp_server_port(native)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._ended = Watched()
        self._finalizer = weakref.finalize(self, _close, native, keep, self._ended, os.getpid())

    def wait(self) -> None:
        """Returns when the server is closed by another thread; KeyboardInterrupt closes it too."""
        try:
            self._ended.wait_done()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the server, and returns when its threads have ended."""
        self._finalizer()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(native: Any, _keep: object, ended: Watched, pid: int) -> None:
    from quipu._net import net

    if os.getpid() == pid:
        net()[1].qp_server_close(native)
        ended.set_done()


def serve(model: str | os.PathLike[str], *, host: str = "127.0.0.1", port: int = 8080, name: str | None = None,
          api_key: str | None = None, origin: str | None = None, insecure: bool = False, drain_seconds: float = 0,
          **options: Unpack[ModelOptions]) -> Server:
    """Starts the server of `quipu serve` in this process, on threads of its own, and returns when it answers.

    Arguments::

        host, port      where it listens; port 0: one that is free
        name            the model's name in replies; by default that of its file
        api_key         that clients need; without one, only this computer is served, unless `insecure`
        origin          whose pages may call: an origin, "localhost" or "*"
        drain_seconds   that answers under way have to end when it is closed

    Options are those of Model; `max_sessions` answers are made at a time::

        with quipu.serve("llama3.2:1b", port=0) as server:
            print(server.url)
            server.wait()
    """
    from quipu._net import net
    from quipu.hub import is_name, pull
    from quipu.model import _engine_options

    for option in options:
        known_option("serve()", option, ModelOptions.__annotations__)
    net_ffi, net_lib = net()
    keep: list[Any] = []
    path = pull(model) if is_name(model) else model
    engine = _engine_options(path, options, options.get("max_sessions") or 8, keep)
    texts = {key: net_ffi.new("char[]", utf8(value, f"serve(): {key}"))
             for key, value in {"host": host, "name": name, "api_key": api_key, "origins": origin}.items()
             if value is not None or key == "host"}
    try:
        native = net_ffi.new("qp_server_options *", {
            "size": net_ffi.sizeof("qp_server_options"), "engine": engine, "port": port, "insecure": insecure,
            "drain_seconds": drain_seconds, **texts})
    except (TypeError, OverflowError) as problem:
        raise InvalidError(f"serve(): {problem}") from None
    out, error = net_ffi.new("qp_server **"), net_ffi.new("qp_error *")
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(net_lib.qp_server_open(native, out, error)), daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:  # KeyboardInterrupt: what opens is closed when it is there
        def close() -> None:
            thread.join()
            net_lib.qp_server_close(out[0])

        threading.Thread(target=close, daemon=True).start()
        raise
    check(done[0], error)
    return Server(out[0], (native, engine, keep, texts), host)
