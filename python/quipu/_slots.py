"""The sessions of an engine: which one reads a prompt, so that it reads only what no session holds.

A session that has ended an answer stays open as long as its place is not needed. A later prompt that begins
with the same tokens goes on in it, or in a fork of it, which shares its pages of the KV cache.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from quipu._native import Tokens, check, ffi, lib

from quipu._lora import Uses, adapt
from quipu.errors import NoMemoryError

if TYPE_CHECKING:
    from quipu._engine import Work

LEAST_SHARED = 16
"""Tokens: for fewer, no session is forked."""


class Slot:
    """A session of the engine."""

    def __init__(self) -> None:
        self.pointer: Any = None
        self.work: Work | None = None
        """What runs in it."""
        self.is_users = True
        """Whether it belongs to a Session; else it is kept for what it holds."""
        self.user: weakref.ref[Any] | None = None
        """That Session."""
        self.used = 0
        self.lora: Uses = ()
        """Its adapters."""

    @property
    def count(self) -> int:
        held = ffi.new("size_t *")
        lib.qp_session_tokens(self.pointer, held)
        return int(held[0])

    @property
    def tokens(self) -> Tokens:
        """A copy of the ids that it holds."""
        held = ffi.new("size_t *")
        data = lib.qp_session_tokens(self.pointer, held)
        if held[0] == 0:
            return np.zeros(0, dtype=np.int32)
        return np.frombuffer(ffi.buffer(data, 4 * held[0]), dtype=np.int32).copy()


def common(a: Tokens, b: Tokens) -> int:
    """With how many equal tokens two texts begin."""
    n = min(len(a), len(b))
    unequal = np.flatnonzero(a[:n] != b[:n])
    return int(unequal[0]) if len(unequal) else n


class Slots:
    """All sessions of an engine; for its thread only."""

    def __init__(self, engine: Any, most: int, usual: Uses) -> None:
        self._engine, self._most, self._usual = engine, most, usual
        self._clock = 0
        self.all: list[Slot] = []

    @property
    def are_users(self) -> bool:
        """Whether there is none left that could become free without its user."""
        return sum(slot.is_users for slot in self.all) >= self._most

    @property
    def _idle(self) -> list[Slot]:
        return [slot for slot in self.all if not slot.is_users and slot.work is None]

    @property
    def has_room(self) -> bool:
        return len(self.all) < self._most or bool(self._idle)

    def close_forgotten(self) -> None:
        """Closes sessions whose Session is gone, also if an exception came while it was collected."""
        for slot in list(self.all):
            if slot.is_users and slot.work is None and slot.user is not None and slot.user() is None:
                self.close(slot)

    def close(self, slot: Slot) -> None:
        if slot in self.all:
            self.all.remove(slot)
            lib.qp_session_close(slot.pointer)
            slot.pointer = None

    def evict(self, spare: Slot | None = None) -> bool:
        """Closes the idle session that was used longest ago, but for one."""
        idle = [slot for slot in self._idle if slot is not spare]
        if idle:
            self.close(min(idle, key=lambda slot: slot.used))
        return bool(idle)

    def _add(self, pointer: Any, slot: Slot | None) -> Slot:
        slot = slot or Slot()
        slot.pointer = pointer
        self.all.append(slot)
        return slot

    def open(self, lora: Uses, slot: Slot | None = None) -> Slot:
        """A new session, in the slot or in a new one."""
        if len(self.all) >= self._most:
            self.evict()
        error, out = ffi.new("qp_error *"), ffi.new("qp_session **")
        check(lib.qp_session_open(self._engine, out, error), error)
        slot = self._add(out[0], slot)
        slot.lora = self._usual
        return self._adapt(slot, lora)

    def _adapt(self, slot: Slot, lora: Uses) -> Slot:
        """Gives an empty session its adapters."""
        if slot.lora != lora:
            try:
                adapt(slot.pointer, lora)
            except BaseException:
                self.close(slot)
                raise
            slot.lora = lora
        return slot

    def fork(self, slot: Slot, into: Slot | None = None) -> Slot:
        """Another session with the same tokens, in a slot or in a new one."""
        if len(self.all) >= self._most:
            self.evict(spare=slot)
        error, out = ffi.new("qp_error *"), ffi.new("qp_session **")
        check(lib.qp_session_fork(slot.pointer, out, error), error)
        forked = self._add(out[0], into)
        forked.lora = slot.lora
        return forked

    def take(self, prompt: Tokens, lora: Uses) -> Slot:
        """A session that holds a beginning of the prompt, as long a one as there is, and nothing else."""
        best, shared, held = None, 0, 0
        for slot in self.all:
            if slot.lora != lora:
                continue
            tokens = slot.tokens
            n = min(common(tokens, prompt), len(prompt) - 1)
            if n > shared:
                best, shared, held = slot, n, len(tokens)
        idle = best is not None and best in self._idle
        others = len(self.all) < self._most or len(self._idle) > idle
        if best is None or (shared < LEAST_SHARED and others):
            slot, shared = self.open(lora), 0
        elif idle and (2 * shared >= held or not others):
            slot = best
        elif others:
            slot, shared = self._try_fork(best, shared)
        else:
            slot, shared = self._idle[0], 0
        error = ffi.new("qp_error *")
        check(lib.qp_session_truncate(slot.pointer, shared, error), error)
        self._adapt(slot, lora)
        slot.is_users = False
        self.touch(slot)
        return slot

    def _try_fork(self, best: Slot, shared: int) -> tuple[Slot, int]:
        """A fork; or where pages are missing for it, a new session, which shares nothing."""
        try:
            return self.fork(best), shared
        except NoMemoryError:
            return self.open(best.lora), 0

    def touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock
