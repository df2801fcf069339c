"""The CPU as a device: NumPy for single operations, and for whole programs the native lane where llvmlite is installed.

VOLTA_NATIVE=0 switches the native lane off.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.backends.numpy.backend import NumpyBackend
from volta_fn.core.device import Device, register_platform
from volta_fn.core.jaxpr import ClosedJaxpr


class CpuBackend(NumpyBackend):
    """Buffers are NumPy arrays."""

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool]) -> Callable[..., tuple[Any, ...]]:
        """A program as a function (donate, *buffers) -> buffers."""
        native = _native_program()
        return super().compile(closed, donated) if native is None else native(closed, donated).function()

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool]) -> int:
        """The bytes that a program needs at most for values that are neither arguments nor results."""
        native = _native_program()
        return super().temporaries(closed, donated) if native is None else native(closed, donated).temporaries


@functools.cache
def _native_program() -> Callable[..., Any] | None:
    """The native lane's programs, loaded when the first one is compiled; None where there is no native lane."""
    if os.environ.get("VOLTA_NATIVE", "1") == "0" or os.name != "posix" or importlib.util.find_spec("llvmlite") is None:
        return None
    return importlib.import_module("volta_fn.backends.native.runtime.program").Program


register_platform("cpu", lambda: [Device("cpu", 0, "cpu", CpuBackend())])
