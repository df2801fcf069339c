"""Annotations for profilers, by JAX's names.

Traces are not recorded: `python -m cProfile` profiles Python, and the tools of a GPU's driver its work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, NoReturn

from volta_fn.errors import UnsupportedError

_ADVICE = "recordings of a profiler are not made; profile Python with cProfile, and a GPU with the tools of its driver"


class TraceAnnotation(ContextDecorator):
    """Give a block a name for a profiler (a context manager or decorator)."""

    def __init__(self, name: str, **metadata: Any) -> None:
        self.name, self.metadata = name, metadata

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


class StepTraceAnnotation(TraceAnnotation):
    """Give a step of training a name and a number for a profiler."""


def annotate_function(func: Callable[..., Any], name: str | None = None, **metadata: Any) -> Callable[..., Any]:
    """Give a function a name for a profiler; it is returned as it is."""
    return func


def start_trace(*args: Any, **options: Any) -> NoReturn:
    """Raise `UnsupportedError`: no recordings are made."""
    raise UnsupportedError(f"profiler.start_trace: {_ADVICE}")


def trace(*args: Any, **options: Any) -> NoReturn:
    """Raise `UnsupportedError`: no recordings are made."""
    raise UnsupportedError(f"profiler.trace: {_ADVICE}")


def start_server(*args: Any, **options: Any) -> NoReturn:
    """Raise `UnsupportedError`: no recordings are made."""
    raise UnsupportedError(f"profiler.start_server: {_ADVICE}")


def stop_trace() -> NoReturn:
    """Raise `UnsupportedError`: no recordings are made."""
    raise UnsupportedError(f"profiler.stop_trace: {_ADVICE}")


def device_memory_profile(*args: Any, **options: Any) -> NoReturn:
    """Raise `UnsupportedError`; `device_memory_stats` tells the bytes in use."""
    raise UnsupportedError("profiler.device_memory_profile: call volta_fn.device_memory_stats, which tells the bytes in use")


save_device_memory_profile = device_memory_profile
