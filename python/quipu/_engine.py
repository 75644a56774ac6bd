"""The thread that owns an engine.

    callers of any thread -> inbox -> waiting -> running -> qp_step() -> callers

Only this thread calls the engine. Each turn takes what has come into the inbox, begins what can begin, and
steps all sequences of all callers together: a pass reads the weights once for all of them. A caller waits for
its own work only, and a wait ends by KeyboardInterrupt too.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from quipu._native import check, closed, ffi, lib
from quipu._owner import Owner
from quipu._lora import Adapters
from quipu._slots import Slot, Slots
from quipu._step import Stepped
from quipu._wait import Watched
from quipu.errors import CancelledError, InvalidError

T = TypeVar("T")

GROUP_SECONDS = 0.004
"""About how long passes run before their tokens are handed out."""


class Work(Watched):
    """What a caller wants of an engine.

    The engine's thread calls begin() when `slots` are idle and, if `wants_slot`, one more is free; then, as
    long as begin() and stepped() return True, it steps `sequences`; in the end it calls end().
    """

    slots: tuple[Slot, ...] = ()
    wants_slot = False
    sequences: Sequence[Stepped] = ()

    def __init__(self) -> None:
        super().__init__()
        self.is_cancelled = False
        self.failure: BaseException | None = None

    def begin(self, engine: Engine) -> bool:
        raise NotImplementedError

    def stepped(self) -> bool:
        raise NotImplementedError

    def end(self, failure: BaseException | None) -> None:
        """Called once; `failure`: why it has not ended by itself."""
        self.failure = failure
        self.set_done()

    def cancel(self) -> None:
        """Ends it before its time; from any thread."""
        self.is_cancelled = True
        for sequence in self.sequences:
            sequence.cancel_flag[0] = 1

    def check_cancelled(self) -> None:
        """For works that have no result before their end."""
        if self.is_cancelled:
            raise CancelledError("QP_CANCELLED", "the call was cancelled, or the model closed, before it was done")


W = TypeVar("W", bound=Work)


class Call(Work, Generic[T]):
    """A call that needs the engine for itself."""

    def __init__(self, function: Callable[[Engine], T], slots: tuple[Slot, ...] = (),
                 wants_slot: bool = False) -> None:
        super().__init__()
        self._function, self.slots, self.wants_slot = function, slots, wants_slot
        self.result: T

    def begin(self, engine: Engine) -> bool:
        self.result = self._function(engine)
        return False


class Receiver:
    """What the engine calls during passes; a failure of it is that of the step."""

    def __init__(self, receive: Callable[[Any], None]) -> None:
        self.receive = receive
        self.failure: BaseException | None = None


class Engine(Owner):
    """An open engine; `options` is a qp_engine_options, `keep` what it points to."""

    what = "model"

    def __init__(self, options: Any, keep: Sequence[object], adapters: Adapters) -> None:
        self.adapters = adapters
        super().__init__()
        self._inbox: queue.SimpleQueue[Work | Slot | int | None] = queue.SimpleQueue()
        self._waiting: list[Work] = []
        self._running: list[Work] = []
        self._receiver = next((item for item in keep if isinstance(item, Receiver)), None)
        self._closing = False
        self._in_step = False
        self._pass_seconds = 0.0
        self._opening = Work()
        self.pointer: Any = None
        self.slots: Slots
        self._thread = threading.Thread(target=self._run, args=(options, keep), name="quipu", daemon=True)
        for other in list(_engines):  # their memory is free then
            if other._closing and not other.is_of_parent and not other.is_current:
                other._thread.join()
        self._thread.start()
        try:
            self.wait(self._opening)
        except BaseException:
            self.ask_to_close()
            raise

    # ---- for any thread

    def submit(self, *works: Work) -> None:
        """Hands on work, whose caller waits for `done`."""
        self.check_open()
        if self.is_current:
            raise InvalidError("receivers such as on_logits are called while the model runs: use the model after the "
                               "call that they belong to")
        with self._lock:
            if self._closed:
                raise closed(self.what)
            for work in works:
                self._inbox.put(work)

    def wait(self, *works: Work) -> None:
        """Waits for the end of all, and raises what the first of them has met."""
        try:
            for work in works:
                work.wait_done()
        except BaseException:
            self.cancel(*works)
            raise
        for work in works:
            if work.failure is not None:
                raise work.failure

    def cancel(self, *works: Work) -> None:
        if not self.is_of_parent:
            for work in works:
                work.cancel()
            self._inbox.put(None)

    def call(self, function: Callable[[Engine], T], slots: tuple[Slot, ...] = (), wants_slot: bool = False) -> T:
        """Calls the engine by itself, between two steps, when the sessions are idle."""
        if self.is_current and not self._in_step:
            return function(self)
        call = Call(function, slots, wants_slot)
        try:
            self.submit(call)
            self.wait(call)
        except BaseException:
            call.cancel()
            raise
        return call.result

    def drop(self, number: int) -> None:
        self._inbox.put(number)

    def release(self, slot: Slot) -> None:
        """Closes a session and cancels what runs in it; from any thread, also while objects are collected."""
        self._inbox.put(slot)

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def ask_to_close(self) -> None:
        """Cancels what runs and closes the engine soon; also while objects are collected."""
        if not self.is_of_parent:
            self._closing = True
            for work in list(self._running):
                work.cancel()
            self._inbox.put(None)

    def close(self) -> None:
        """Returns when the engine is closed."""
        self.ask_to_close()
        if not self.is_of_parent and not self.is_current:
            self._thread.join()

    # ---- the engine's thread

    def _run(self, options: Any, keep: Sequence[object]) -> None:
        _engines.add(self)
        failure: BaseException | None = None
        try:
            self._open(options)
        except BaseException as problem:
            failure, self._closed = problem, True
            _engines.discard(self)
        self._opening.end(failure)
        if failure is not None:
            return
        try:
            while self._turn():
                pass
        finally:
            self._shut()
            del keep
            _engines.discard(self)

    def _open(self, options: Any) -> None:
        error, out = ffi.new("qp_error *"), ffi.new("qp_engine **")
        check(lib.qp_engine_open(options, out, error), error)
        self.pointer = out[0]
        self.info = lib.qp_engine_get_info(self.pointer)
        self.vocab_size, self.context = int(self.info.vocab_size), int(self.info.context)
        self.max_outputs = int(self.info.max_outputs)
        self.sampling_defaults = ffi.new("qp_sampling *", {"size": ffi.sizeof("qp_sampling")})
        check(lib.qp_sampling_defaults(self.pointer, self.sampling_defaults, error), error)
        self.slots = Slots(self.pointer, max(1, int(options.max_sessions)), self.adapters.usual)

    def _turn(self) -> bool:
        """False: the engine is to be closed."""
        self._receive(wait=not self._running and not self._waiting)
        if self._closing:
            return False
        self._begin_waiting()
        for works in self._batches():
            self._step(works)
        return True

    def _receive(self, wait: bool) -> None:
        try:
            item = self._inbox.get(block=wait)
            while True:
                self._take(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        for work in [work for work in self._waiting if work.is_cancelled]:
            self._waiting.remove(work)
            self._end(work, CancelledError("QP_CANCELLED", "the call was cancelled"))

    def _take(self, item: Work | Slot | int | None) -> None:
        if isinstance(item, Work):
            self._waiting.append(item)
        elif isinstance(item, int):
            self.close_one(item)
        elif isinstance(item, Slot):
            if item.work is not None:
                item.work.cancel()
                item.is_users = False  # and kept, when that has ended
            else:
                self.slots.close(item)

    def _begin_waiting(self) -> None:
        """Begins in order; work for the same session, or for one more, does not overtake."""
        self.slots.close_forgotten()
        taken: set[Slot] = set()
        full = False
        for work in list(self._waiting):
            if any(slot.work is not None or slot in taken for slot in work.slots) or work.wants_slot and full:
                taken.update(work.slots)
                continue
            if work.wants_slot and not self.slots.has_room and not self.slots.are_users:
                taken.update(work.slots)
                full = True
                continue
            self._waiting.remove(work)
            self._begin(work)

    def _begin(self, work: Work) -> None:
        failure: BaseException | None = None
        try:
            if any(slot.pointer is None or not slot.is_users for slot in work.slots):
                raise closed("session")
            if work.wants_slot and not self.slots.has_room:
                raise InvalidError(f"all {len(self.slots.all)} sessions of the model are in use: close one, or open "
                                   "the model with more max_sessions")
            if work.begin(self):
                self._running.append(work)
                for slot in work.slots:
                    slot.work = work
                return
        except BaseException as problem:
            failure = self._take_failure() or problem
        self._end(work, failure)

    def _end(self, work: Work, failure: BaseException | None) -> None:
        for slot in work.slots:
            if slot.work is work:
                slot.work = None
                self.slots.touch(slot)
        work.end(failure)

    def running(self, kind: type[W]) -> list[W]:
        """The work of a kind that runs."""
        return [work for work in self._running if isinstance(work, kind)]

    def _batches(self) -> list[list[Work]]:
        """What is stepped together: of sequences that choose tokens, as many as the engine has outputs."""
        batches: list[list[Work]] = [[]]
        choosing = 0
        for work in self._running:
            n = sum(sequence.sampler is not None for sequence in work.sequences)
            if batches[-1] and choosing + n > self.max_outputs:
                batches.append([])
                choosing = 0
            batches[-1].append(work)
            choosing += n
        return batches if batches[0] else []

    def _step(self, works: list[Work]) -> None:
        """A failure before anything has run is that of one of the works: each is stepped by itself then."""
        failure = self._call_step([sequence for work in works for sequence in work.sequences])
        while failure is not None and getattr(failure, "status", "") == "QP_NO_MEMORY" and self.slots.evict():
            failure = self._call_step([sequence for work in works for sequence in work.sequences])
        alone = failure is not None and getattr(failure, "status", "") in ("QP_INVALID", "QP_NO_MEMORY")
        if alone and len(works) > 1:
            for work in works:
                self._step([work])
            return
        for work in works:
            reason = failure
            try:
                if failure is None and work.stepped():
                    continue
            except BaseException as problem:
                reason = problem
            self._running.remove(work)
            self._end(work, reason)

    def _call_step(self, sequences: list[Stepped]) -> BaseException | None:
        if not sequences:
            return None
        array = ffi.new("qp_sequence[]", len(sequences))
        places = {id(sequence): array + i for i, sequence in enumerate(sequences)}
        error, began = ffi.new("qp_error *"), time.monotonic()
        interval = max(1, int(GROUP_SECONDS / self._pass_seconds)) if self._pass_seconds else 0
        self._in_step = True
        try:
            for i, sequence in enumerate(sequences):
                sequence.fill(array[i], places, interval)
            check(lib.qp_step(self.pointer, array, len(sequences), error), error)
        except BaseException as failure:
            return self._take_failure() or failure
        finally:
            self._in_step = False
            for i, sequence in enumerate(sequences):
                sequence.take(array[i], self.context)
        if all(sequence.made for sequence in sequences) and (passes := max(s.passes for s in array)):
            self._pass_seconds = (time.monotonic() - began) / passes
        return None

    def _take_failure(self) -> BaseException | None:
        failure = self._receiver.failure if self._receiver else None
        if self._receiver:
            self._receiver.failure = None
        return failure

    def _shut(self) -> None:
        for work in [*self._running, *self._waiting]:
            work.cancel()
            self._end(work, CancelledError("QP_CANCELLED", "the model was closed before the call was done"))
        self.refuse_users()
        self._running, self._waiting = [], []
        self._receive(wait=False)
        for work in self._waiting:
            self._end(work, closed(self.what))
        self.close_all()
        for slot in list(self.slots.all):
            self.slots.close(slot)
        lib.qp_engine_close(self.pointer)
        self.pointer = None


_engines: set[Engine] = set()


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


atexit.register(_close_all)
