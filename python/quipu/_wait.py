"""Waiting for other threads, in which KeyboardInterrupt may come at any time.

`threading.Event` and `Condition` are written in Python: an exception between two of their lines leaves their lock
locked, and the next thread that needs it hangs. What is here holds no lock while Python runs.
"""

from __future__ import annotations

import queue
from collections.abc import Callable


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
