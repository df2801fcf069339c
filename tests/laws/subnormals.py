"""Subnormal numbers, which a GPU may take and give as zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.devices.device import current_default_device

#: How close functions of zeros are: half a unit in the last place of bfloat16, some of float32.
_NEAR = {"bfloat16": 4e-3, "float16": 1e-3, "float64": 1e-14, "complex128": 1e-14}
#: The least normal number of float32 and bfloat16.
_TINY = 2.0**-126


def preserves_subnormals() -> bool:
    """Return True if arithmetic on the default device keeps subnormal numbers."""
    device = current_default_device()
    return device.platform != "gpu" or device.backend.gpu.capabilities.subnormals  # type: ignore[attr-defined]  # a GPU's


def flushed(x: np.ndarray) -> np.ndarray:
    """Replace subnormal float32 and bfloat16 numbers by zeros of the same sign."""
    if x.dtype.name not in ("float32", "bfloat16"):
        return x
    tiny = np.abs(x.astype(np.float64)) < float(dtypes.finfo(x.dtype).tiny)
    return np.where(tiny, np.where(np.signbit(x), -np.zeros((), x.dtype), np.zeros((), x.dtype)), x)


def expected(actual: np.ndarray, reference: Callable[..., Any], operands: Sequence[np.ndarray], *, preserved: bool) -> np.ndarray:
    """Return what a function should give.

    Where subnormal numbers matter and are not preserved, that is `actual` itself if it is right for zeros.
    """
    wanted = np.asarray(reference(*operands)).astype(actual.dtype)
    if preserved:
        return wanted
    matters = flushed(wanted) != wanted
    for x in operands:
        matters = matters | (flushed(x) != x) & (x == x)
    with np.errstate(all="ignore"):
        of_zeros = np.asarray(reference(*map(flushed, operands))).astype(actual.dtype)
    got, zeros = flushed(actual).astype(complex), flushed(of_zeros).astype(complex)
    near = np.isclose(got, zeros, rtol=_NEAR.get(actual.dtype.name, 3e-6), atol=_TINY, equal_nan=True)
    return np.where(matters & near, actual, wanted)
