"""Calls of `sort`: numbers that are hard to sort, and parameters."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes


def numbers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Numbers with ties; of floats also NaN, infinities and zeros of either sign."""
    rng = np.random.default_rng(seed)
    kind = dtypes.as_dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        ends = np.array([info.min, info.max], kind)
        return rng.choice(np.concatenate([rng.integers(info.min, info.max, 50, kind, endpoint=True), ends]), shape)
    values = rng.choice(np.concatenate([rng.normal(size=200) * 100, [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0] * 8]), shape)
    if kind.kind == "c":
        values = values + 0j
        values.imag = rng.permutation(values.real.ravel()).reshape(shape)
    return values.astype(kind)


def params(axis: int, keys: int = 1, stable: bool = True) -> dict[str, object]:
    """Return the parameters of `sort`."""
    return {"dimension": axis, "is_stable": stable, "num_keys": keys}
