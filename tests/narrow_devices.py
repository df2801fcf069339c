"""What tests have to do with devices without 64-bit dtypes, as every WebGPU device may be: they have to say so."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import volta_fn.numpy as vnp
from volta_fn.errors import DTypeError

_NO_SUCH_DTYPE = re.compile("(?:^|Actual message: .)the GPU .* has no (float64|u?int64|complex128)")


@functools.cache
def has(dtype: str) -> bool:
    """Whether the process's default device has a dtype."""
    try:
        vnp.zeros(1, dtype)
    except DTypeError:
        return False
    return True


#: The widest floats of the process's default device.
FLOAT = "float64" if has("float64") else "float32"


def lacks_the_dtype(error: BaseException) -> bool:
    """Whether the device said that it has no such dtype, with no more than every WebGPU device has.

    That may be said of another `DTypeError` that was expected, too: by `pytest.raises`, whose pattern does not match.
    """
    return os.environ.get("VOLTA_GPU_LIMITS") == "webgpu" and bool(_NO_SUCH_DTYPE.search(str(error)))


@contextmanager
def where_the_device_has_the_dtypes() -> Iterator[None]:
    """A part of a test that ends here, and not the whole test, where the device has no such dtype."""
    try:
        yield
    except DTypeError as error:
        if not lacks_the_dtype(error):
            raise
