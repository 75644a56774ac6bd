"""What the package raises: QuipuError, in the words of the library, and the built-in kind where there is one."""

from __future__ import annotations


class QuipuError(Exception):
    """What was refused, and why. `status` is "QP_INVALID", "QP_IO", ... as quipu.h has it."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[QuipuError], tuple[str, str]]:
        return type(self), (self.status, str(self))


class InvalidError(QuipuError, ValueError):
    """QP_INVALID: an argument has a wrong value, or the object is closed."""

    def __init__(self, message: str, status: str = "QP_INVALID") -> None:
        super().__init__(status, message)

    def __reduce__(self) -> tuple[type[QuipuError], tuple[str, str]]:
        return type(self), (str(self), self.status)


class WrongTypeError(InvalidError, TypeError):
    """An argument has a wrong type, or there is no such option."""


class WrongTokenError(InvalidError, IndexError):
    """A token is outside the vocabulary."""


class NoMemoryError(QuipuError, MemoryError):
    """QP_NO_MEMORY: memory ran out, or is too small."""


class CancelledError(QuipuError):
    """QP_CANCELLED: the model was closed before the call was done."""


def error_of(status: str, message: str) -> QuipuError:
    """The exception for a status of the library."""
    if status == "QP_INVALID":
        return InvalidError(message)
    kinds: dict[str, type[QuipuError]] = {"QP_NO_MEMORY": NoMemoryError, "QP_CANCELLED": CancelledError}
    return kinds.get(status, QuipuError)(status, message)
