"""Contractions as one stacked matrix product, and Fourier transforms by pocketfft."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.threads import run_together, thread_count

# The contraction kernel: `dot_general` as one (stacked) matrix product.
#
# BLAS computes it wherever the dtype lets it. The axes of an operand fall into *batch* axes (in both operands and in the result),
# *contracted* axes (summed over) and *free* axes (in the result only). Transposed views and reshapes bring the operands to `[batch..., M,
# K]` and `[batch..., K, N]`; a reshape copies only when axes that have to merge are not adjacent in memory.
#
# A *product* multiplies such stacks in a given *working dtype*: the result's dtype itself, except that float16 and bfloat16 work in
# float32 and are rounded once at the end. Integers multiply exactly and wrap around; the product of booleans is "any of (a and b)".

Axes = tuple[int, ...]
DotDimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
Product = Callable[..., np.ndarray]  # of two arrays, and perhaps `out`

_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_FLOAT32 = np.dtype(np.float32)
_LIMB_BITS = 16
_EXACT_TERMS = 1 << 20  # products of two 16-bit limbs, which sum exactly in a float64: 2^20 * 2^32 < 2^53


def working_dtype(dtype: np.dtype) -> np.dtype:
    """Return float32 for float16 and bfloat16, else `dtype`."""
    return _FLOAT32 if dtype in _HALF else dtype


def product_for(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> Product:
    """Return the function that multiplies stacks of matrices into the working dtype.

    The operands have dtypes `lhs` and `rhs`, the result `out`. It is `np.matmul` itself if that takes no conversion; only then it has a
    parameter ``out``.
    """
    if out == np.bool_:
        return _bool_product
    if out.kind in "iu":
        return lambda a, b: _integer_product(a, b, out)
    working = working_dtype(out)
    if working.kind == "c":
        return lambda a, b: _complex_product(a.astype(working, copy=False), b.astype(working, copy=False))
    if lhs == rhs == working:
        return np.matmul
    return lambda a, b: np.matmul(a.astype(working, copy=False), b.astype(working, copy=False))


def _bool_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return where any term `a and b` holds, counted by BLAS."""
    # A float32 count may saturate, but never returns to zero.
    return np.matmul(a.astype(np.float32), b.astype(np.float32)) > 0


def _complex_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product; what is not finite is summed again without BLAS."""
    # BLAS multiplies sums by 1 + 0i, which makes infinite components NaN: which ones depends on the routine, and so on the shapes.
    result = np.asarray(np.matmul(a, b))
    wrong = ~np.isfinite(result)
    if wrong.any():
        result[wrong] = np.einsum("...ij,...jk->...ik", a, b)[wrong]
    return result


def _integer_product(a: np.ndarray, b: np.ndarray, out: np.dtype) -> np.ndarray:
    """Return the product modulo 2^bits of `out`."""
    # It is summed from exact float64 products of 16-bit limbs, as BLAS has no integers and NumPy's own loop is slow.
    total = np.zeros((), np.uint64)
    for start in range(0, a.shape[-1], _EXACT_TERMS):
        terms = slice(start, start + _EXACT_TERMS)
        left, right = _limbs(a[..., terms]), _limbs(b[..., terms, :])
        for (i, x), (j, y) in cartesian(enumerate(left), enumerate(right)):
            shift = _LIMB_BITS * (i + j)
            if shift < out.itemsize * 8:
                total = total + (np.matmul(x, y).astype(np.int64).view(np.uint64) << np.uint64(shift))
    return np.broadcast_to(total, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])).astype(out)


def _limbs(x: np.ndarray) -> list[np.ndarray]:
    """Return float64 arrays whose sum, limb i weighted by 2^(16 i), is `x`.

    Every limb but the last is unsigned.
    """
    count = max(1, x.itemsize * 8 // _LIMB_BITS)
    low = [(x >> x.dtype.type(_LIMB_BITS * i)) & x.dtype.type(0xFFFF) for i in range(count - 1)]
    return [limb.astype(np.float64) for limb in [*low, x >> x.dtype.type(_LIMB_BITS * (count - 1))]]


def _outer_product_for(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> Product:
    """Return the product where nothing is contracted (K = 1): a multiplication."""
    working = working_dtype(out)
    if lhs == rhs == working:
        return np.multiply
    return lambda a, b: np.multiply(a.astype(working, copy=False), b.astype(working, copy=False))


@lru_cache(maxsize=4096)
def dot_general_plan(
    lhs_ndim: int,
    rhs_ndim: int,
    dimension_numbers: DotDimensionNumbers,
    lhs_dtype: np.dtype,
    rhs_dtype: np.dtype,
    preferred_element_type: np.dtype | None = None,
    has_scalar: bool = False,
) -> Product:
    """Return `dot_general` for given ranks and dtypes, as a function of the operands.

    `has_scalar` says that an operand may be a matrix of one element.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    out_dtype = np.promote_types(lhs_dtype, rhs_dtype) if preferred_element_type is None else np.dtype(preferred_element_type)
    lhs_free = _rest(lhs_ndim, lhs_contract, lhs_batch)
    rhs_free = _rest(rhs_ndim, rhs_contract, rhs_batch)
    by_lhs_axis = sorted(range(len(lhs_contract)), key=lambda i: lhs_contract[i])  # the order of a sum is free: take the order in memory
    lhs_order = (*lhs_batch, *lhs_free, *(lhs_contract[i] for i in by_lhs_axis))
    rhs_order = (*rhs_batch, *(rhs_contract[i] for i in by_lhs_axis), *rhs_free)
    multiply = (product_for if lhs_contract else _outer_product_for)(lhs_dtype, rhs_dtype, out_dtype)
    if multiply is np.matmul and lhs_ndim == rhs_ndim == 2 and len(lhs_contract) == 1 and not lhs_batch and not has_scalar:
        multiply = np.dot  # the same product, half a microsecond sooner; but for one element of 0 it leaves out NaN
    if not isinstance(multiply, np.ufunc) and multiply is not np.dot:
        multiply = _rounding(multiply, out_dtype)
    if len(lhs_free) == len(lhs_contract) == len(rhs_free) == 1:
        return _matrices(multiply, _permutation(lhs_order), _permutation(rhs_order))
    return _merged(multiply, lhs_order, rhs_order, len(lhs_batch), len(lhs_free), len(lhs_contract))


def _rounding(product: Product, dtype: np.dtype) -> Product:
    """Return a product rounded to its dtype, with a parameter ``out``."""

    def multiply(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        result = product(lhs, rhs)
        if out is None:
            return result.astype(dtype, copy=False)
        out[...] = result
        return out

    return multiply


def _rest(ndim: int, *taken: Axes) -> Axes:
    return tuple(axis for axis in range(ndim) if not any(axis in axes for axes in taken))


def _permutation(order: Axes) -> Axes | None:
    """Return None for the identity, so that the common case makes no view."""
    return None if order == tuple(range(len(order))) else order


def _matrices(multiply: Product, lhs_order: Axes | None, rhs_order: Axes | None) -> Product:
    """Return the contraction of operands that are stacks of permuted matrices."""
    if lhs_order is None and rhs_order is None:
        return multiply
    if lhs_order is None:
        return lambda lhs, rhs, out=None: multiply(lhs, rhs.transpose(rhs_order), out=out)
    if rhs_order is None:
        return lambda lhs, rhs, out=None: multiply(lhs.transpose(lhs_order), rhs, out=out)
    return lambda lhs, rhs, out=None: multiply(lhs.transpose(lhs_order), rhs.transpose(rhs_order), out=out)


def _merged(multiply: Product, lhs_order: Axes, rhs_order: Axes, batch: int, free: int, contracted: int) -> Product:
    """Return the contraction of operands whose free and contracted axes are merged."""

    def contract(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        lhs, rhs = lhs.transpose(lhs_order), rhs.transpose(rhs_order)
        stack, rows, terms = lhs.shape[:batch], lhs.shape[batch : batch + free], lhs.shape[batch + free :]
        columns = rhs.shape[batch + contracted :]
        matrices = multiply(
            lhs.reshape(*stack, prod(rows), prod(terms)),
            rhs.reshape(*stack, prod(terms), prod(columns)),
            out=None if out is None else out.reshape(*stack, prod(rows), prod(columns)),
        )
        return matrices.reshape(stack + rows + columns)

    return contract


def dot_general(
    lhs: np.ndarray,
    rhs: np.ndarray,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None = None,
    precision: str | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Contract `lhs` with `rhs`.

    `dimension_numbers` is `((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))`. The result has the batch axes, the free axes of
    `lhs`, then those of `rhs`; its dtype is `preferred_element_type`, or else the operands' own. A lower `precision` rounds nothing.
    """
    has_scalar = 1 in (lhs.size, rhs.size)
    plan = dot_general_plan(lhs.ndim, rhs.ndim, dimension_numbers, lhs.dtype, rhs.dtype, preferred_element_type, has_scalar)
    return plan(lhs, rhs, out=out)


def typed_dot_general(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None,
    precision: str | None = None,
) -> Product:
    """Return the plan for operands of the given avals.

    Without looking it up, a small product costs little more than `np.matmul`.
    """
    has_scalar = 1 in (lhs.size, rhs.size)
    return dot_general_plan(lhs.ndim, rhs.ndim, dimension_numbers, lhs.dtype, rhs.dtype, preferred_element_type, has_scalar)


# Fourier transforms by pocketfft, in the precision of their operands.
#
# SciPy's computes several signals with one vector instruction, and takes a third of the time of NumPy's, which serves without SciPy.

#: A batch of this many numbers is divided among the threads.
_LARGE = 1 << 18


def fft(x: np.ndarray, *, kind: str, length: int, axis: int, out: np.ndarray | None = None) -> np.ndarray:
    """Transform along an axis; for half spectra `length` is that of the full signal."""
    # The signals of a large batch are divided among the threads, which changes no digit.
    library = _scipy()
    if library is None:
        along = next((d for d, n in enumerate(x.shape) if d != axis % x.ndim and n >= 2), None) if x.size >= _LARGE else None
        threads = 1 if along is None else min(thread_count(), x.shape[along])
        if along is None or threads == 1:
            return _transform(x, kind, length, axis, out)
        if out is None:
            shape = [*x.shape]
            shape[axis] = length // 2 + 1 if kind == "RFFT" else length
            out = np.empty(shape, x.real.dtype if kind == "IRFFT" else np.result_type(x.dtype, np.complex64))
        bounds = [x.shape[along] * i // threads for i in range(threads + 1)]
        batches = [(slice(None),) * along + (slice(low, high),) for low, high in pairwise(bounds)]
        run_together([partial(_transform, x[batch], kind, length, axis, out[batch]) for batch in batches])
        return out
    transform, workers = getattr(library, kind.lower()), thread_count() if x.size >= _LARGE else 1
    if out is None:
        return transform(x, length, axis, workers=workers)
    if x.dtype != out.dtype:
        out[...] = transform(x, length, axis, workers=workers)
        return out
    out[...] = x  # to be transformed in place, since new memory would take longer than this copy
    spectrum = transform(out, length, axis, overwrite_x=True, workers=workers)
    if not np.may_share_memory(spectrum, out):
        out[...] = spectrum
    return out


@functools.cache
def _scipy() -> Any:
    return load("scipy.fft") if is_installed("scipy") else None


def _transform(x: np.ndarray, kind: str, length: int, axis: int, out: np.ndarray | None) -> np.ndarray:
    """Transform in this thread."""
    # NumPy (2.4) transforms single precision in double, with conversions, unless it scales the result, which it does by a number of that
    # precision. So it divides by the length here, and the result is multiplied again: by a power of two no digit changes.
    transform: Callable[..., np.ndarray] = getattr(np.fft, kind.lower())  # not before: NumPy loads `fft` on first use
    if kind in ("IFFT", "IRFFT") or x.dtype.char in "dD":
        return transform(x, length, axis, out=out)
    spectrum = transform(x, length, axis, "forward", out=out)
    spectrum *= length
    return spectrum
