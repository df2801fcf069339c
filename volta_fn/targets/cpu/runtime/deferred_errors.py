"""Exceptions in functions that programs call: they wait until the program has ended."""

from __future__ import annotations

import threading

#: The status of a host function that raised an exception.
FAILED = 1

_failures = threading.local()


def fail(error: BaseException) -> int:
    """The status that says that this exception is to be raised when the program has ended."""
    _failures.exception = error
    return FAILED


def failure() -> BaseException:
    """What the host function of this thread raised last."""
    error: BaseException = _failures.exception
    del _failures.exception
    return error
