"""Quantiles among infinities, by definition."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp

METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
VALUES = [1.0, -2.0, math.inf, -math.inf]


def quantile(numbers: list[float], fraction: float, method: str) -> float:
    """Return a quantile of numbers that are not NaN: between equal neighbours there is nothing to interpolate."""
    ordered = sorted(numbers)
    if method == "inverted_cdf":
        return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]
    position = fraction * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    share = position - math.floor(position)
    if method in ("lower", "higher") or share == 0:
        return low if method == "lower" else high
    if method == "nearest":
        return high if share > 0.5 else low
    share = 0.5 if method == "midpoint" else share
    return low * (1 - share) + high * share


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_among_infinities(size: int, method: str) -> None:
    rows = np.float32(list(itertools.product(VALUES, repeat=size)))
    wanted = [[quantile(row.tolist(), fraction, method) for row in rows] for fraction in FRACTIONS]
    missing = np.float32([[*row, math.nan] for row in rows])
    for function, per_cent, x in (
        (vnp.quantile, vnp.percentile, rows),
        (vnp.nanquantile, vnp.nanpercentile, rows),
        (vnp.nanquantile, vnp.nanpercentile, missing),
    ):
        compute = functools.partial(function, q=np.float32(FRACTIONS), axis=1, method=method)
        for actual in (compute(x), vf.jit(compute)(x), per_cent(x, 100 * np.float32(FRACTIONS), axis=1, method=method)):
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_medians_of_infinities() -> None:
    x = np.float32([[1.0, math.nan, 3.0], [math.inf, -math.inf, 2.0]])
    np.testing.assert_array_equal(vnp.nanmedian(x, axis=()), x)
    np.testing.assert_array_equal(vnp.median(x[1:], axis=0), x[1])
    np.testing.assert_array_equal(vnp.median(np.float32([math.inf, math.inf])), math.inf)
    assert np.isnan(vnp.median(np.float32([-math.inf, math.inf])))


def test_gradients_are_finite_where_an_infinity_is_passed_over() -> None:
    gradient = vf.grad(lambda x: vnp.quantile(x, 0.5))(np.float32([1.0, 2.0, math.inf]))
    np.testing.assert_array_equal(gradient, [0.0, 1.0, 0.0])
