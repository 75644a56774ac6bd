"""Waiting for other threads, in which KeyboardInterrupt may come at any time.

`threading.Event` and `Condition` are written in Python: an exception between two of their lines leaves their lock
locked, and the next thread that needs it hangs. What is here holds no lock while Python runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Watched:
    """Something that changes, and for which threads and tasks wait; in the end it is `done`."""

    def __init__(self) -> None:
        self.done = False
        self._watchers: list[Callable[[], object]] = []

    def watch(self, watcher: Callable[[], object]) -> None:
        """Calls it at the next change. Who watches looks once more afterwards, because the change may have come
        before."""
        self._watchers.append(watcher)

    def notify(self) -> None:
        """Wakes those who wait; what they wait for has changed already."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        """Until something is there, which notify() is called after."""
        wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        while not is_there():
            self.watch(lambda: wake.put(None))
            if not is_there():
                wake.get()

    def set_done(self) -> None:
        self.done = True
        self.notify()

    def wait_done(self) -> None:
        self.wait_for(lambda: self.done)


def call_apart(function: Callable[[], int], cancel: Any) -> int:
    """The status of a call of the library, which runs on a thread of its own: KeyboardInterrupt, which comes to this
    one, sets *cancel and waits for its end."""
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(function()), daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        cancel[0] = 1
        thread.join()
        raise
    return status[0]
