"""Products of any layout and dtype beside NumPy's answer in wider numbers, for every backend that has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

MATRICES = (((1,), (0,)), ((), ()))

#: Both axes of both operands contracted: NN is the second, TN the first, …
LAYOUTS = [(((i,), (j,)), ((), ())) for i in (0, 1) for j in (0, 1)]


def expected(lhs: np.ndarray, rhs: np.ndarray, dims: Any, dtype: Any) -> np.ndarray:
    """Return the product in `dtype`, by einsum."""
    (lhs_inner, rhs_inner), (lhs_stack, rhs_stack) = dims
    left, right = list(range(lhs.ndim)), list(range(20, 20 + rhs.ndim))
    for i, j in (*zip(lhs_inner, rhs_inner, strict=True), *zip(lhs_stack, rhs_stack, strict=True)):
        right[j] = left[i]
    out = [left[i] for i in lhs_stack]
    out += [left[i] for i in range(lhs.ndim) if i not in (*lhs_inner, *lhs_stack)]
    out += [right[j] for j in range(rhs.ndim) if j not in (*rhs_inner, *rhs_stack)]
    return np.einsum(lhs.astype(dtype), left, rhs.astype(dtype), right, out)


def arrays(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Small numbers of any dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -100, 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.random(shape) < 0.3 if dtype == np.bool_ else rng.standard_normal(shape).astype(dtype)


def operands(rng: np.random.Generator, sizes: tuple[int, int, int], dims: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Matrices for a product of sizes (m, n, k) in one of `LAYOUTS`."""
    m, n, k = sizes
    lhs = arrays(rng, (k, m) if dims[0][0] == (0,) else (m, k), dtype)
    return lhs, arrays(rng, (k, n) if dims[0][1] == (0,) else (n, k), dtype)


def check(
    product: Callable[[np.ndarray, np.ndarray, Any, Any], np.ndarray], lhs: np.ndarray, rhs: np.ndarray, dims: Any, preferred: Any = None
) -> None:
    """Compare a product with NumPy: up to the rounding of the sum of so many terms and of the result."""
    got = product(lhs, rhs, dims, preferred)
    exact = got.dtype.kind in "iub"
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    want = expected(lhs, rhs, dims, got.dtype if exact else wide)
    assert got.shape == want.shape
    if exact:
        np.testing.assert_array_equal(got, want)
        return
    scale = expected(np.abs(lhs.astype(wide)), np.abs(rhs.astype(wide)), dims, np.float64)
    inner = ml_dtypes.finfo(got.dtype if got.dtype.itemsize > 2 else np.float32).eps
    bound = 8 * float(inner) * scale + float(ml_dtypes.finfo(got.dtype).eps) * np.abs(want)
    assert (np.abs(got.astype(wide) - want) <= bound).all()
