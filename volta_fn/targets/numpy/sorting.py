"""Sorting, the greatest k, and the indices of extremes in NumPy.

The order of floating-point numbers is total: -inf < numbers < inf < NaN, with -0.0 equal to 0.0 and every NaN equal to every other.
A *rank* is an integer that orders as its number does, so that sorting ranks sorts in that order and the complement ``~rank`` sorts in
the opposite one. NumPy sorts integers by vector instructions but not stably; ranks that leave room for their position in
64 bits are therefore sorted together with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def sort(*operands: np.ndarray, dimension: int, is_stable: bool, num_keys: int) -> tuple[np.ndarray, ...]:
    """Return the operands, permuted alike along ``dimension`` so that the keys ascend.

    The keys are the first ``num_keys`` operands, compared in order. Complex numbers compare by real part, then by imaginary part. Several
    operands are always sorted stably.
    """
    if len(operands) == 1 and operands[0].dtype.kind in "biuf" and operands[0].dtype not in _HALF:
        return (_sort_values(operands[0], dimension, is_stable),)
    keys = [real for key in operands[:num_keys] for real in _real_keys(np.moveaxis(key, dimension, -1))]
    order = stable_order(keys[0]) if len(keys) == 1 else np.lexsort(keys[::-1], axis=-1)
    order = np.moveaxis(order, -1, dimension)
    return tuple(np.take_along_axis(operand, order, dimension) for operand in operands)


def top_k(operand: np.ndarray, *, k: int, dimension: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``k`` greatest along ``dimension``, descending, and int32 indices.

    Of equals the lower index comes first. NaN counts as greater than infinity.
    """
    last = np.moveaxis(operand, dimension, -1)
    falling = ~rank(last)
    if 0 < k * 8 < last.shape[-1]:
        chosen = _least(falling, k)
        indices = np.take_along_axis(chosen, stable_order(np.take_along_axis(falling, chosen, -1)), -1)
    else:
        indices = stable_order(falling)[..., :k]
    values = np.take_along_axis(last, indices, -1)
    return np.moveaxis(values, -1, dimension), np.moveaxis(indices.astype(np.int32), -1, dimension)


def argmax(operand: np.ndarray, *, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    """Return the index of the first greatest element along an axis; NaN wins."""
    return _extreme(np.argmax, operand, axes, index_dtype)


def argmin(operand: np.ndarray, *, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    """Return the index of the first least element along an axis; NaN wins."""
    return _extreme(np.argmin, operand, axes, index_dtype)


def rank(x: np.ndarray) -> np.ndarray:
    """Return integers of the width of ``x`` that are ordered as its elements are."""
    if x.dtype.kind in "iu":
        return x
    if x.dtype.kind == "b":
        return x.astype(np.uint8)
    canonical = np.where(np.isnan(x), np.array(np.nan, x.dtype), x + np.zeros((), x.dtype))
    bits = canonical.view(f"i{x.dtype.itemsize}")
    return bits ^ ((bits >> (8 * x.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max)


def stable_order(keys: np.ndarray) -> np.ndarray:
    """Return the indices that sort along the last axis, equals in their order."""
    size = keys.shape[-1]
    if keys.dtype.itemsize == 8 or size >= 1 << 31:
        return np.argsort(keys, axis=-1, kind="stable")
    packed = (rank(keys).astype(np.int64) << 31) | np.arange(size)
    packed.sort(axis=-1)
    return packed & ((1 << 31) - 1)


def _sort_values(x: np.ndarray, axis: int, is_stable: bool) -> np.ndarray:
    """Sort one operand: among its equals only zeros of either sign differ."""
    if not is_stable or x.dtype.kind != "f":
        return np.sort(x, axis=axis)
    if x.ndim == 1:
        found = x.copy()
        found.sort()
        second = int(found.searchsorted(x.dtype.type(0))) + 1
        several = second < found.size and found[second] == 0
        return np.sort(x, kind="stable") if several and _has_negative_zero(x) else found
    return np.sort(x, axis=axis, kind="stable" if _has_negative_zero(x) else None)


def _has_negative_zero(x: np.ndarray) -> bool:
    zeros = x == 0
    return bool(zeros.any()) and bool(np.signbit(x[zeros]).any())


def _real_keys(key: np.ndarray) -> list[np.ndarray]:
    if key.dtype.kind == "c":
        return [key.real, key.imag]
    return [rank(key) if key.dtype in _HALF else key]


def _least(keys: np.ndarray, k: int) -> np.ndarray:
    """Return the indices, ascending, of the ``k`` least along the last axis.

    Of equals to the greatest of them, the first ones are taken.
    """
    threshold = np.partition(keys, k - 1, axis=-1)[..., k - 1 : k]
    below, equal = keys < threshold, keys == threshold
    wanted = k - below.sum(axis=-1, keepdims=True)
    chosen = below | (equal & (equal.cumsum(axis=-1) <= wanted))
    return np.nonzero(chosen)[-1].reshape(*keys.shape[:-1], k)


def _extreme(find: Callable[..., Any], operand: np.ndarray, axes: tuple[int, ...], index_dtype: Any) -> np.ndarray:
    (axis,) = axes
    x = operand.astype(np.float32) if operand.dtype in _HALF else operand
    return np.asarray(find(x, axis=axis)).astype(index_dtype)
