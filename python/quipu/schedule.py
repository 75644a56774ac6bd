"""Schedules as arrays: queues of instructions that Python can read, change and run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quipu._native import instance
from quipu.errors import QuipuError

INSTRUCTION = np.dtype([
    ("opcode", "<u2"), ("flags", "<u2"), ("step", "<u2"), ("layer", "<i2"), ("node", "<u4"), ("part", "<u2"),
    ("parts", "<u2"), ("units", "<i4", 2), ("tokens", "<i4", 2),
    ("waits", [("counter", "<u4"), ("needed", "<u4")], 2), ("signal", "<u4"), ("cost_ns", "<u4"), ("params", "<f4", 5),
    ("operands", "<u2", 24), ("zero", "<u4")])
"""An instruction: 32 words of 32 bits, which src/schedule/instruction.h draws."""

_HEADER = np.dtype([
    ("magic", "S8"), ("version", "<u4"), ("workers", "<u4"), ("longest", "<u4"), ("n_counters", "<u4"),
    ("fingerprint", "<u8"), ("checksum", "<u8"), ("setting", "<u4"), ("assignment", "<u4"), ("last_step", "<u4"),
    ("zero", "<u4"), ("tokens", "<i8"), ("context", "<i8"), ("tile", "<i8"), ("group", "<i8"),
    ("memory_fraction", "<f8"), ("profile", "<f8", 3), ("zeros", "<u8")])

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    x = (x + 0x9e3779b97f4a7c15) & _MASK
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & _MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & _MASK
    return x ^ x >> 31


class Schedule:
    """A forward pass as queues of instructions, one queue for each worker.

    Members::

        instructions   INSTRUCTION (workers, longest): row w is the queue of worker w, and zeros after its end
        lengths        int32 (workers): how many of them are in the queue
        per_pass       uint32 (counters): the signals that each counter gets in a pass

    The arrays may be changed. Model.reschedule() proves a schedule sound before it runs: each row of each
    tensor is written once and before it is read, and no worker waits for ever. A schedule belongs to the
    model, context, chunk and number of threads that it was made for.
    """

    def __init__(self, data: bytes) -> None:
        data = bytes(instance(data, (bytes, bytearray, memoryview), "the data of a schedule"))
        if len(data) < _HEADER.itemsize or data[:8] != b"QUIPUSCH":
            raise QuipuError("QP_FORMAT", 'not a schedule: it should begin with "QUIPUSCH"')
        self._header = np.frombuffer(data, _HEADER, 1).copy()
        header = self._header[0]
        workers, longest, counters = (int(header[key]) for key in ("workers", "longest", "n_counters"))
        needed = _HEADER.itemsize + 4 * (counters + workers) + workers * longest * INSTRUCTION.itemsize
        if len(data) != needed:
            raise QuipuError("QP_FORMAT", f"{len(data)} bytes are no schedule of one rank, which would have {needed}")
        at = _HEADER.itemsize
        self.per_pass: npt.NDArray[np.uint32] = np.frombuffer(data, "<u4", counters, at).copy()
        at += 4 * counters
        self.lengths: npt.NDArray[np.int32] = np.frombuffer(data, "<i4", workers, at).copy()
        at += 4 * workers
        self.instructions: npt.NDArray[Any] = (np.frombuffer(data, INSTRUCTION, workers * longest, at)
                                               .reshape(workers, longest).copy())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """What save(), or `quipu schedule --save`, wrote."""
        return cls(Path(path).read_bytes())

    @property
    def workers(self) -> int:
        """The number of queues."""
        return len(self.lengths)

    @property
    def fingerprint(self) -> int:
        """Of the program that the instructions refer to."""
        return int(self._header[0]["fingerprint"])

    def queue(self, worker: int) -> npt.NDArray[Any]:
        """The instructions of a worker: a view, INSTRUCTION (n,)."""
        return self.instructions[worker, :self.lengths[worker]]

    def to_bytes(self) -> bytes:
        """The schedule's file."""
        workers, longest = self.instructions.shape
        header = self._header.copy()
        header["workers"], header["longest"], header["n_counters"] = workers, longest, len(self.per_pass)
        header["checksum"] = 0
        rest = (self.per_pass.astype("<u4").tobytes() + self.lengths.astype("<i4").tobytes() +
                self.instructions.tobytes())
        checksum = 0
        for word in np.frombuffer(header.tobytes() + rest, "<u4").tolist():
            checksum = _mix(checksum ^ word)
        header["checksum"] = checksum
        return header.tobytes() + rest

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that load(), `quipu run --schedule` and `quipu schedule --load` read."""
        Path(path).write_bytes(self.to_bytes())

    @contextmanager
    def _as_file(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "schedule")
            self.save(path)
            yield path
