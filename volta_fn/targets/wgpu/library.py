"""wgpu's C interface, and the errors that it reports.

Its calls cost a third of those of the Python classes around it, which serve everything that is called rarely.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load
from volta_fn.targets.gpu.device.driver import LOST


class Native(NamedTuple):
    """The native library: functions, cffi, checked functions, and the error handler."""

    lib: Any
    ffi: Any
    checked: Any
    errors: Any
    #: The process that loaded it: a forked process has neither its threads nor its driver's state.
    process: int


def wgpu() -> Any:
    """Import the package wgpu on first use."""
    try:
        return load("wgpu")
    except ImportError as error:
        raise DeviceError(f"the platform 'gpu' needs the package wgpu ({error}); pip install wgpu, or use the device 'cpu'") from None


@functools.cache
def native() -> Native:
    """Load the library that the package wraps."""
    wgpu()
    logging.getLogger("wgpu").addHandler(logging.NullHandler())
    module = load("wgpu.backends.wgpu_native._api")
    extras = load("wgpu.backends.wgpu_native.extras")
    with contextlib.suppress(RuntimeError):  # another library has created the instance already, which serves as well
        # Without these flags wgpu would validate each indirect grid by a dispatch of its own. OpenGL offers no further GPU.
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"], flags=["Empty"])
    return Native(module.lib, module.ffi, module.libf, module.error_handler, os.getpid())


def typed(kind: str, message: str) -> VoltaError:
    """Return an error that the library reported as a `VoltaError`."""
    lowered = message.lower()
    if "lost" in lowered:
        return DeviceError(LOST)
    if kind == "OutOfMemory" or "out of memory" in lowered or "not enough memory" in lowered:
        return OutOfMemoryError(f"the GPU has no room: {message}")
    return DeviceError(f"the GPU's driver refused: {message}")


class DriverErrors:
    """A context that raises the errors that the library reports in this thread.

    It is much cheaper than a check per call.
    """

    def __init__(self) -> None:
        self.handler = native().errors
        #: Whether the device is known to be lost; then no further call may be made.
        self.device_lost = False

    def __enter__(self) -> None:
        self.handler.capture("volta_fn")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        failure = self.handler.release("volta_fn")
        if failure is not None:
            self._note(failure[1])
            if error is None:
                raise typed(*failure)

    def _note(self, message: str) -> None:
        self.device_lost = self.device_lost or "lost" in message.lower()

    @contextlib.contextmanager
    def classes(self) -> Iterator[None]:
        """Return a context for the package's classes, whose errors become `VoltaError`s."""
        try:
            yield
        except wgpu().GPUError as error:
            self._note(str(error))
            raise typed("OutOfMemory" if isinstance(error, wgpu().GPUOutOfMemoryError) else "", str(error)) from error
