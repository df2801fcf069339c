"""Kernels on a card, by the driver's C functions and nothing else of the package."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.targets.nvidia.translation.ptx import compile_shader
from volta_fn.targets.nvidia.translation import translate

#: The driver's numbers: attributes of a device, and what follows in the list of a launch.
_MAJOR, _MINOR = 75, 76
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    assert status == 0, f"{name} returned {status}"


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _processor() -> str:
    """Open the first card, and return its processor as LLVM names it."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(device), 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)
    version = [ctypes.c_int(), ctypes.c_int()]
    for number, attribute in zip(version, (_MAJOR, _MINOR), strict=True):
        _call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
    return f"sm_{version[0].value}{version[1].value}"


@functools.lru_cache(maxsize=64)
def _function(source: str) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), compile_shader(source, _processor()).encode() + b"\0")
    _call("cuModuleGetFunction", ctypes.byref(function), module, b"main")
    return function


def _put(array: np.ndarray) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(array.nbytes, 16)))
    _call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
    return address


def run(source: str, groups: Sequence[int], arrays: Sequence[np.ndarray], grid: np.ndarray | None = None) -> None:
    """Run a shader on copies of arrays, and copy them back."""
    function = _function(source)
    addresses = [_put(array) for array in arrays]
    words = None if grid is None else _put(grid)
    sizes = [array.nbytes for array in arrays]
    block = np.array([*[a.value for a in addresses], *sizes, 0 if words is None else words.value], np.uint64)
    size = ctypes.c_size_t(block.nbytes)
    extra = (ctypes.c_void_p * 5)(_BUFFER_POINTER, block.ctypes.data, _BUFFER_SIZE, ctypes.addressof(size), _END)
    _call("cuLaunchKernel", function, *groups, *translate(source).threads, 0, None, None, extra)
    _call("cuCtxSynchronize")
    for array, address in zip(arrays, addresses, strict=True):
        _call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address, ctypes.c_size_t(array.nbytes))
    for address in [*addresses, *([] if words is None else [words])]:
        _call("cuMemFree_v2", address)
