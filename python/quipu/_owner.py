"""Who closes the objects of the library: an engine, or a vocabulary that was opened by itself.

An owner closes its objects, then itself, after the last call that uses it. So objects can be closed and
collected in any order, also while other threads use them. After a fork the child may use none of them: the
threads of an engine do not exist there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from quipu._native import closed
from quipu.errors import InvalidError


class Owner:
    """`with owner.in_use():` it stays open, if the first thing that is done there looks whether it is."""

    what = "vocabulary"

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._use_locks = [threading.RLock() for _ in range(8)]
        self._closed = False
        self._owned: dict[int, tuple[Any, Callable[[Any], None]]] = {}
        self._next = 0

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one that has opened it."""
        return os.getpid() != self._pid

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_forked(self) -> None:
        if self.is_of_parent:
            raise InvalidError(f"the {self.what} was opened by process {self._pid}, from which this one was "
                               "forked, and cannot be used here; open it after the fork")

    def check_open(self) -> None:
        self.check_forked()
        if self._closed:
            raise closed(self.what)

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """A lock that threads rarely share, and that no exception between two lines of Python leaves locked."""
        self.check_forked()
        return self._use_locks[threading.get_native_id() % len(self._use_locks)]

    def own(self, pointer: Any, close: Callable[[Any], None], what: str) -> Native:
        """An object that is closed with the owner, if not before."""
        with self._lock:
            self._next += 1
            self._owned[self._next] = (pointer, close)
            return Native(self, self._next, pointer, what)

    def close_one(self, number: int) -> None:
        """Closes an object, once."""
        owned = self._owned.pop(number, None)
        if owned is not None:
            pointer, close = owned
            close(pointer)

    def drop(self, number: int) -> None:
        """Closes an object whose user has gone; from any thread, also while objects are collected."""
        if not self.is_of_parent:
            self.close_one(number)

    def refuse_users(self) -> None:
        """From now on the owner is closed; returns after the last call that uses it."""
        with self._lock:
            self._closed = True
        for lock in self._use_locks:
            with lock:
                pass

    def close_all(self) -> None:
        for number in sorted(self._owned, reverse=True):
            self.close_one(number)


class Native:
    """An object of the library."""

    def __init__(self, owner: Owner, number: int, pointer: Any, what: str) -> None:
        self.owner, self.what = owner, what
        self._number, self._pointer = number, pointer

    @property
    def pointer(self) -> Any:
        if self._pointer is None:
            raise closed(self.what)
        self.owner.check_open()
        return self._pointer

    def close(self) -> None:
        if self._pointer is not None:
            self._pointer = None
            self.owner.drop(self._number)

    def __del__(self) -> None:
        self.close()
