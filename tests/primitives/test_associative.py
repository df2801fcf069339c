"""`associative_scan` against folds in NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import INT
from volta_fn import lax
from volta_fn.errors import ArgumentError, DTypeError, ShapeError, TreeError


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 13, 32])
def test_sums(size: int, axis: int, reverse: bool) -> None:
    shape = [2, 3, 2]
    shape[axis] = size
    x = np.random.default_rng(size).integers(-5, 6, shape, INT)
    order = (slice(None),) * (axis % 3) + (slice(None, None, -1 if reverse else 1),)
    for run in (lax.associative_scan, vf.jit(lax.associative_scan, static_argnums=(0, 2, 3))):
        got = np.asarray(run(lax.add, x, reverse, axis))
        assert got.dtype == x.dtype and (got == x[order].cumsum(axis)[order]).all()


@pytest.mark.wide
def test_order_is_kept() -> None:
    """Products of matrices do not commute: with `fn(a, b)` = a b, the prefixes are x0 x1 … xi."""
    xs = np.random.default_rng(0).normal(size=(7, 2, 2))

    def matmul(a: Any, b: Any) -> Any:
        return lax.reduce_sum(lax.expand_dims(a, (3,)) * lax.expand_dims(b, (1,)), (2,))

    prefixes = [xs[0]]
    for x in xs[1:]:
        prefixes.append(prefixes[-1] @ x)
    np.testing.assert_allclose(lax.associative_scan(matmul, xs), prefixes)
    suffixes = [xs[-1]]
    for x in xs[-2::-1]:
        suffixes.append(suffixes[-1] @ x)
    np.testing.assert_allclose(lax.associative_scan(matmul, xs, reverse=True), suffixes[::-1])


@pytest.mark.wide
def test_trees_and_special_values() -> None:
    got = lax.associative_scan(lambda a, b: {"max": lax.max(a["max"], b["max"]), "any": a["any"] | b["any"]},
                               {"max": np.array([-0.0, -np.inf, np.nan, 1.0]), "any": np.array([False, False, True, False])})  # fmt: skip
    assert np.array_equal(np.asarray(got["max"]), [-0.0, -0.0, np.nan, np.nan], equal_nan=True)
    assert np.signbit(np.asarray(got["max"])[0])
    assert np.asarray(got["any"]).tolist() == [False, False, True, True]


class Pair(NamedTuple):
    """Two arrays by name."""

    low: Any
    high: Any


@pytest.mark.parametrize("results", [tuple, list, lambda pair: {"a": pair[0], "b": pair[1]}, lambda pair: (pair[0], None, pair[1])])
def test_results_have_the_structure_of_the_elements(results: Any) -> None:
    """As in JAX the function may return its leaves in another structure."""
    x = np.random.default_rng(3).integers(-9, 9, 7, INT)
    got = lax.associative_scan(lambda a, b: results((lax.min(a.low, b.low), lax.max(a.high, b.high))), Pair(x, x))
    assert isinstance(got, Pair)
    assert np.array_equal(got.low, np.minimum.accumulate(x)) and np.array_equal(got.high, np.maximum.accumulate(x))


@pytest.mark.wide
def test_transforms() -> None:
    x = np.random.default_rng(1).normal(size=(3, 6))
    weights = np.arange(6.0)
    slope = vf.vmap(vf.grad(lambda row: lax.reduce_sum(lax.associative_scan(lax.mul, row) * weights, (0,))))(x)
    prefix = np.cumprod(x, 1) * weights
    expected = np.stack([prefix[:, i:].sum(1) / x[:, i] for i in range(6)], 1)
    np.testing.assert_allclose(slope, expected)


MESSAGES = [
    (lambda: lax.associative_scan(lambda a, b: (a, b), np.ones(3)), TreeError, r"takes the structure \* and returns \(\*, \*\)"),
    (lambda: lax.associative_scan(lambda a, b: a[:1], np.ones(5)), ShapeError, r"f64\[2\] and returns f64\[1\]"),
    (lambda: lax.associative_scan(lambda a, b: a < b, np.ones(5)), DTypeError, r"f64\[2\] and returns bool\[2\]"),
    (lambda: lax.associative_scan(lax.add, (np.ones(3), np.ones(4))), ShapeError, r"\(3,\), \(4,\)"),
    (lambda: lax.associative_scan(lax.add, (np.ones((3, 2)), np.ones(2)), axis=1), ShapeError, "one size along axis 1"),
    (lambda: lax.associative_scan(lax.add, ()), ArgumentError, "no arrays"),
    (lambda: lax.associative_scan(lax.add, 1.0), ShapeError, "axis=0 is out of range"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
