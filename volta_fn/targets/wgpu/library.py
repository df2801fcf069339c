"""wgpu's C interface, loaded on first use.

Its calls cost a third of those of the Python classes around it, which serve everything that is called rarely.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import Any, NamedTuple

from volta_fn.errors import DeviceError
from volta_fn.lazy_imports import load


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
