"""Variables of the environment that users set: what each may be.

All are checked when the CPU is first used, so that none is passed over because what it decides comes later, or not at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from volta_fn.errors import ArgumentError

#: The most threads and devices: more take minutes to start, and gain nothing.
_MOST_THREADS, _MOST_DEVICES = 1024, 256


class _Kind(NamedTuple):
    """What a variable may be."""

    expected: str
    #: Makes the value of a text, or raises ValueError.
    parse: Callable[[str], Any]
    least: float = -math.inf
    most: float = math.inf


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(text)
    return int(text)


def _count(of: str, least: int = 0, most: int = 2**63 - 1) -> _Kind:
    return _Kind(f"a number of {of}, from {least} to {most}", _digits, least, most)


def _one_of(*words: str) -> _Kind:
    return _Kind(" or ".join(map(repr, words)), {word: word for word in words}.__getitem__)


_SECONDS, _FLAG = _Kind("a number of seconds, at least 0", float, 0), _one_of("0", "1")
_KINDS = {
    "VOLTA_CACHE_BYTES": _count("bytes"),
    "VOLTA_CHECK_INDICES": _FLAG,
    "VOLTA_COLLECTIVE_TIMEOUT": _SECONDS,
    "VOLTA_CPU_DEVICES": _count("devices", 1, _MOST_DEVICES),
    "VOLTA_GPU_CHECKS": _FLAG,
    "VOLTA_GPU_DEBUG": _FLAG,
    "VOLTA_GPU_LIMITS": _one_of("webgpu"),
    "VOLTA_GPU_MEMORY": _count("bytes"),
    "VOLTA_GPU_TIMEOUT": _SECONDS,
    "VOLTA_GPU_TUNE": _FLAG,
    "VOLTA_MEMORY": _count("bytes"),
    "VOLTA_NATIVE": _FLAG,
    "VOLTA_NUMPY_DTYPE_PROMOTION": _one_of("standard", "strict"),
    "VOLTA_NUM_THREADS": _count("threads", 1, _MOST_THREADS),
    "VOLTA_TRACEBACK_FILTERING": _one_of("on", "off"),
    "VOLTA_VECTOR_BYTES": _one_of("16", "32", "64"),
    "VOLTA_VERIFY": _FLAG,
}


def value_of(variable: str) -> Any:
    """Return what a variable is set to; None if it is not set, or empty.

    Raises `ArgumentError` if that is not what the variable may be.
    """
    text = os.environ.get(variable)
    return _checked(variable, text) if text else None


def _checked(variable: str, text: str) -> Any:
    kind = _KINDS[variable]
    try:
        value = kind.parse(text)
        if not isinstance(value, str) and not kind.least <= value <= kind.most:  # nor NaN
            raise ValueError(text)
    except (KeyError, ValueError):
        raise ArgumentError(f"{variable} is {text!r:.80}, but must be {kind.expected}") from None
    return value


def check_device_count(count: int) -> int:
    """Return a number of the CPU's devices, if there may be so many."""
    return int(_checked("VOLTA_CPU_DEVICES", str(count)))


def check_all() -> None:
    """Raise `ArgumentError` for the first variable that is set to what it cannot be."""
    for variable in _KINDS:
        value_of(variable)
