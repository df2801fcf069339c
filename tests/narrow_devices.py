"""Tests on devices without 64-bit dtypes, as any WebGPU device may be.

A test that needs such a dtype says it by its parameters, or by the mark ``wide``; it passes where the device refuses that dtype. Others
run there as well: with `FLOAT` and `INT`, or with the rest of them inside `where_the_device_has_the_dtypes`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import volta_fn.numpy as vnp
from volta_fn.errors import DTypeError

_WIDE = re.compile("float64|int64|complex128")
_NO_SUCH_DTYPE = re.compile("(?:^|Actual message: .)the GPU .* has no (float64|u?int64|complex128)")


@functools.cache
def has(dtype: str) -> bool:
    """Return True if the process's default device has a dtype."""
    try:
        vnp.zeros(1, dtype)
    except DTypeError:
        return False
    return True


#: The widest floats and integers of the process's default device.
FLOAT = "float64" if has("float64") else "float32"
INT = "int64" if has("int64") else "int32"


def lacks_the_dtype(error: BaseException) -> bool:
    """Return True if a device with WebGPU's minimum said that it has no such dtype.

    It may say so in place of another `DTypeError` that was expected, too: by `pytest.raises`, whose pattern does not match.
    """
    return os.environ.get("VOLTA_GPU_LIMITS") == "webgpu" and bool(_NO_SUCH_DTYPE.search(str(error)))


def says_that_it_is_wide(item: pytest.Item) -> bool:
    """Return True if a test is of 64-bit dtypes by its mark or its parameters."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return item.get_closest_marker("wide") is not None or any(_WIDE.search(repr(value)) for value in parameters.values())


@contextmanager
def where_the_device_has_the_dtypes() -> Iterator[None]:
    """End a block of a test, and not the test, where the device has no such dtype."""
    try:
        yield
    except DTypeError as error:
        if not lacks_the_dtype(error):
            raise
