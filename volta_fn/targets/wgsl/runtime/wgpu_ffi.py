"""wgpu's C interface. Its calls cost a third of those of the Python classes around it; those serve where nothing is called often."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import Any, NamedTuple

from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load


class Native(NamedTuple):
    """The library: its functions, cffi, its functions with errors raised, and where errors are reported."""

    lib: Any
    ffi: Any
    checked: Any
    errors: Any
    #: The process that loaded it. One that is forked from this has none of its threads, and nothing that its driver knows.
    process: int


#: Says what the runtime does. VOLTA_GPU_DEBUG=1 has it written on stderr.
log = logging.getLogger("volta_fn.gpu")
if os.environ.get("VOLTA_GPU_DEBUG", "0") != "0":
    log.setLevel(logging.DEBUG)
    log.addHandler(logging.StreamHandler())
    log.handlers[-1].setFormatter(logging.Formatter("%(relativeCreated).3f ms %(threadName)s: %(message)s"))

FORKED = (
    "this process was forked from one that had begun to use the GPU, which is not there in a fork. "
    "Start processes by multiprocessing's methods 'spawn' or 'forkserver', or use the device 'cpu' in forked ones"
)

LOST = "the GPU was lost, by a failure of its driver or a reset. Arrays that were there are gone; make them again"


def wgpu() -> Any:
    """The package wgpu, imported on first use."""
    try:
        return load("wgpu")
    except ImportError as error:
        raise DeviceError(f"the platform 'gpu' needs the package wgpu ({error}); pip install wgpu, or use the device 'cpu'") from None


@functools.cache
def native() -> Native:
    """The library behind the package."""
    wgpu()
    logging.getLogger("wgpu").addHandler(logging.NullHandler())
    module = load("wgpu.backends.wgpu_native._api")
    extras = load("wgpu.backends.wgpu_native.extras")
    with contextlib.suppress(RuntimeError):  # somebody else in the process has made the instance, and that will do, too
        # Grids that are read from buffers would be checked by a dispatch each; ours are right. OpenGL brings no GPU that we could use.
        extras.set_instance_extras(backends=["Vulkan", "Metal", "DX12"], flags=["Empty"])
    return Native(module.lib, module.ffi, module.libf, module.error_handler, os.getpid())


def typed(kind: str, message: str) -> VoltaError:
    """An error that the library reported, as one of ours."""
    lowered = message.lower()
    if "lost" in lowered:
        return DeviceError(LOST)
    if kind == "OutOfMemory" or "out of memory" in lowered or "not enough memory" in lowered:
        return OutOfMemoryError(f"the GPU has no room: {message}")
    return DeviceError(f"the GPU's driver refused: {message}")


class Watched:
    """``with watched:`` raises what the library reports meanwhile in this thread as an error of ours. Much cheaper than per call."""

    def __init__(self) -> None:
        self.errors = native().errors
        #: Whether the device is known to be lost: then it must not be asked for anything any more.
        self.lost = False

    def __enter__(self) -> None:
        self.errors.capture("volta_fn")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        found = self.errors.release("volta_fn")
        if found is not None:
            self.lost = self.lost or "lost" in found[1].lower()
            if error is None:
                raise typed(*found)
