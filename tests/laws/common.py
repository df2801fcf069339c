"""Arguments drawn for a sample, results as flat NumPy arrays, and comparisons."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.samples.sample import Sample
from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.devices.device import current_default_device

Function = Callable[..., Any]
F64, C128 = np.dtype(np.float64), np.dtype(np.complex128)


def draw(sample: Sample, dtype: np.dtype, seed: int = 0) -> list[np.ndarray]:
    """Draw the sample's arguments in a dtype: the same ones in every run."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{sample}/{dtype.name}".encode())])
    return [arg.draw(rng, arg.shape, dtype if arg.dtype is None else dtypes.as_dtype(arg.dtype)) for arg in sample.args]


def arrays(values: Sequence[np.ndarray]) -> list[Array]:
    """Convert NumPy arrays to the package's."""
    return [as_value(v) for v in values]


def host(result: Any) -> list[np.ndarray]:
    """Return the leaves of a result as NumPy arrays."""
    return [np.asarray(leaf) for leaf in tree.leaves(result)]


def on_gpu() -> bool:
    """Return True if programs run on a GPU."""
    return current_default_device().platform == "gpu"


def inexact(values: Sequence[Any]) -> list[Any]:
    """Return the values that have derivatives."""
    return [v for v in values if v.dtype in dtypes.INEXACT]


def wide(values: np.ndarray) -> np.ndarray:
    """Convert floats to float64 and complex numbers to complex128."""
    if values.dtype in dtypes.COMPLEX:
        return values.astype(C128)
    return values.astype(F64) if values.dtype in dtypes.FLOATS else values


def restricted(function: Function, args: Sequence[Any], positions: Sequence[int]) -> Function:
    """Return `function` of the arguments at `positions`, with the others held fixed.

    It returns its results that have derivatives, as a list.
    """

    def of_chosen(*chosen: Any) -> list[Any]:
        merged = list(args)
        for position, value in zip(positions, chosen, strict=True):
            merged[position] = value
        return inexact(tree.leaves(function(*merged)))

    return of_chosen


def random_like(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """Draw normal numbers of the shape and dtype of `values`, complex ones too."""
    numbers = rng.normal(size=values.shape)
    if values.dtype in dtypes.COMPLEX:
        numbers = numbers + 1j * rng.normal(size=values.shape)
    return np.asarray(numbers).astype(values.dtype)


#: Relative tolerance of a value computed in a dtype against the same computed in float64: some units in the last place.
ROUNDING = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 3e-14, "complex64": 3e-6, "complex128": 3e-14}


def assert_close(actual: np.ndarray, expected: np.ndarray, rtol: float, label: str, atol: float | None = None) -> None:
    """Assert equal shapes, dtypes and non-finite elements, and close finite ones.

    They differ by at most rtol |expected| + atol. The default `atol` is `rtol` times the largest expected magnitude, as sums of numbers of
    that size deserve.
    """
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape} where {expected.shape} was expected"
    assert actual.dtype == expected.dtype, f"{label}: dtype {actual.dtype} where {expected.dtype} was expected"
    if actual.dtype not in dtypes.INEXACT:
        assert np.array_equal(actual, expected), f"{label}: {actual} where {expected} was expected"
        return
    got, want = wide(actual), wide(expected)
    finite = np.isfinite(want)
    same = np.array_equal(np.isfinite(got), finite) and np.array_equal(got[~finite], want[~finite], equal_nan=True)
    assert same, f"{label}: {actual} where {expected} was expected (not finite at different places)"
    scale = np.max(np.abs(want[finite]), initial=0.0)
    excess = np.abs(got[finite] - want[finite]) - rtol * np.abs(want[finite]) - (rtol * scale if atol is None else atol)
    assert np.all(excess <= 0), f"{label}: {actual} where {expected} was expected, by {np.max(excess):.3g} too far"


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, label: str) -> None:
    """Assert equality to the last bit (any NaN equals any other)."""
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape} where {expected.shape} was expected"
    assert actual.dtype == expected.dtype, f"{label}: dtype {actual.dtype} where {expected.dtype} was expected"
    if actual.dtype in dtypes.COMPLEX:
        actual, expected = (np.stack([v.real, v.imag]) for v in (actual, expected))
    same = actual == expected
    if actual.dtype in dtypes.FLOATS:
        same = same & (np.signbit(actual) == np.signbit(expected)) | np.isnan(actual) & np.isnan(expected)
    assert np.all(same), f"{label}: {actual} where {expected} was expected, bit for bit"
