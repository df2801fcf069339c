"""Subnormal numbers of float32 and bfloat16, which a GPU may take, and give, as zeros: then both readings of a function are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.device import current_default_device


def kept() -> bool:
    """Whether arithmetic on the default device keeps subnormal numbers."""
    device = current_default_device()
    return device.platform != "gpu" or device.backend.gpu.facts.subnormals  # type: ignore[attr-defined]  # a GPU's


def flushed(x: np.ndarray) -> np.ndarray:
    """Numbers with the subnormal ones of float32 and bfloat16 as zeros of the same sign."""
    if x.dtype.name not in ("float32", "bfloat16"):
        return x
    tiny = np.abs(x.astype(np.float64)) < float(dtypes.finfo(x.dtype).tiny)
    return np.where(tiny, np.where(np.signbit(x), -np.zeros((), x.dtype), np.zeros((), x.dtype)), x)


def expected(actual: np.ndarray, meaning: Callable[..., Any], operands: Sequence[np.ndarray], *, kept: bool) -> np.ndarray:
    """What a function of numbers should give: where subnormal ones matter and are not kept, `actual` itself if it is right for zeros."""
    wanted = np.asarray(meaning(*operands)).astype(actual.dtype)
    if kept:
        return wanted
    matters = flushed(wanted) != wanted
    for x in operands:
        matters = matters | (flushed(x) != x) & (x == x)
    with np.errstate(all="ignore"):
        of_zeros = np.asarray(meaning(*map(flushed, operands))).astype(actual.dtype)
    near = np.isclose(flushed(actual).astype(complex), flushed(of_zeros).astype(complex), rtol=1e-2, equal_nan=True)
    return np.where(matters & near, actual, wanted)
