"""The oracle of volta_fn.numpy: NumPy's values, JAX's shapes and dtypes.

A *call* is a function of a namespace and arrays, such as ``lambda xp, a: xp.sum(a, axis=0)``, which runs unchanged with NumPy, JAX and
volta_fn.numpy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.narrow_devices import where_the_device_has_the_dtypes

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(t) for t in (np.float16, BF16, np.float32, np.float64)]
COMPLEX = [np.dtype(t) for t in (np.complex64, np.complex128)]
SIGNED = [np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64)]
UNSIGNED = [np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)]
INTEGERS = SIGNED + UNSIGNED
BOOL = [np.dtype(bool)]
REALS = FLOATS + INTEGERS
ALL = BOOL + REALS + COMPLEX
#: One of each kind, for functions that only move elements.
KINDS = [np.dtype(t) for t in (bool, np.int32, np.uint8, np.float32, BF16, np.complex64)]

#: Relative error allowed, by the dtype of the result: some rounding steps of its precision.
TOLERANCE = {np.dtype(np.float16): 4e-3, BF16: 3e-2, np.dtype(np.float32): 3e-6, np.dtype(np.complex64): 3e-6}


def sample(shape: tuple[int, ...], dtype: Any, seed: int = 0, low: float = -3.0, high: float = 3.0) -> np.ndarray:
    """Return reproducible numbers of a dtype between two bounds (unsigned: from 0)."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(zlib.crc32(repr((shape, dtype.name, seed)).encode()))
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        bottom = max(int(np.floor(low)), np.iinfo(dtype).min)
        return np.asarray(rng.integers(bottom, int(np.ceil(high)) + 1, shape), dtype)
    values = rng.uniform(low, high, shape)
    return np.asarray(values + 1j * rng.uniform(low, high, shape) if dtype.kind == "c" else values, dtype)


def widened(x: Any) -> Any:
    """Convert floats and complex numbers to double precision."""
    if not isinstance(x, np.ndarray):
        return x
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    return x.astype(np.float64) if x.dtype == BF16 or x.dtype.kind == "f" else x


def _as_float(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind in "biu" else x


def flat(result: Any) -> list[Any]:
    """List the arrays of a result of one or several."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def jax_types(call: Callable[..., Any], arrays: tuple[Any, ...]) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Return the shapes and dtypes of JAX's results, with x64 if an operand needs it."""
    jax = pytest.importorskip("jax")
    wide = any(getattr(a, "dtype", None) in (np.int64, np.uint64, np.float64, np.complex128) for a in arrays)
    with jax.enable_x64(wide):
        out = jax.eval_shape(lambda *a: call(jax.numpy, *a), *arrays)
    return [(o.shape, np.dtype(o.dtype)) for o in flat(out)]


def assert_close(got: Any, wanted: Any, tolerance: float | None = None, where: Any = "") -> None:
    """Compare up to the precision of `got`'s dtype; NaN and infinities must coincide."""
    values = np.asarray(got)
    if values.dtype.kind in "biu":
        np.testing.assert_array_equal(values, np.asarray(wanted).astype(values.dtype), err_msg=str(where))
        return
    rtol = tolerance or TOLERANCE.get(values.dtype, 1e-12)
    target = np.asarray(wanted)
    # What overflows or underflows in the narrow dtype does so in the oracle's result too.
    target = target.astype(values.dtype).astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    finite = np.abs(target[np.isfinite(target)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    wide = values.astype(target.dtype)
    np.testing.assert_allclose(wide, target, rtol=rtol, atol=rtol * scale, err_msg=str(where))


@where_the_device_has_the_dtypes()
def check(
    call: Callable[..., Any], *arrays: Any, oracle: Callable[..., Any] | None = None, tolerance: float | None = None,
    jax: bool = True, traced: bool = True, index: bool = False, floats: bool = False,
) -> None:  # fmt: skip
    """Compare with NumPy's values, JAX's types, and the results when traced.

    Args:
        call: the call, of a namespace and arrays.
        arrays: NumPy arrays.
        oracle: the reference, of wide NumPy arrays, where `call` with NumPy is none.
        tolerance: relative error allowed, where it is not that of the dtype.
        jax: whether JAX has the same meaning.
        traced: whether the call can be traced.
        floats: whether integers become floats, so that the oracle should compute with wide ones.
        index: whether the result is an index or a count, int32 here whatever JAX's setting.
    """
    where = [f"{a.dtype}{a.shape}" if isinstance(a, np.ndarray) else repr(a) for a in arrays]
    results = flat(call(vnp, *[vnp.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays]))
    wide = [_as_float(widened(a)) if floats else widened(a) for a in arrays]
    with np.errstate(all="ignore"):
        wanted = flat(oracle(*wide) if oracle else call(np, *wide))
    assert len(results) == len(wanted), where
    for got, want in zip(results, wanted, strict=True):
        assert got.shape == np.shape(want), (where, got.shape, np.shape(want))
        assert_close(got, want, tolerance, where)
    if jax:
        types = [(s, np.dtype(np.int32) if index and d == np.int64 else d) for s, d in jax_types(call, arrays)]
        assert [(g.shape, g.dtype) for g in results] == types, where
    if traced:
        again = flat(vf.jit(lambda *a: call(vnp, *a))(*arrays))
        for got, once_more in zip(results, again, strict=True):
            assert got.dtype == once_more.dtype, where
            assert_close(once_more, np.asarray(got), tolerance, where)
