"""Sorting and searching against NumPy, ties and NaN included."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import COMPLEX, REALS, check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

WITH_NAN = np.array([3.0, np.nan, -1.0, np.inf, np.nan, -np.inf, 0.0, -0.0], np.float32)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_sort_and_argsort(axis):
    for dtype in [*REALS, np.dtype(bool)]:
        x = sample((5, 6), dtype, 1, -2, 2)
        check(lambda xp, x: xp.sort(x, axis=axis), x)
        check(lambda xp, x: xp.argsort(x, axis=axis, stable=True), x, index=True)
    check(lambda xp, x: xp.sort(x, axis=axis), np.ones((0, 3), np.float32))


def test_descending():
    x = sample((5, 6), np.int32, 1, -2, 2)
    np.testing.assert_array_equal(np.asarray(vnp.sort(x, descending=True)), np.sort(x)[:, ::-1])
    order = np.asarray(vnp.argsort(x, axis=0, descending=True))
    np.testing.assert_array_equal(order, np.argsort(-x, axis=0, kind="stable"))


def test_nan_goes_last():
    check(lambda xp, x: xp.sort(x), WITH_NAN)
    assert np.isnan(np.asarray(vnp.argsort(WITH_NAN))[-2:] * 0.0 + WITH_NAN[np.asarray(vnp.argsort(WITH_NAN))[-2:]]).all()


def test_complex():
    for dtype in COMPLEX:
        x = np.round(sample((8,), dtype, 1, -1, 1))
        check(lambda xp, x: xp.sort(x), x)
        check(lambda xp, x: xp.sort_complex(x), x)
    check(lambda xp, x: xp.sort_complex(x), sample((4,), np.int32, 1), jax=False)


@pytest.mark.wide
def test_lexsort():
    keys = np.array([[1, 0, 1, 0, 1], [2, 2, 1, 1, 1]], np.int32)
    check(lambda xp, k: xp.lexsort((k[0], k[1])), keys, index=True)
    check(lambda xp, k: xp.lexsort((k, -k), axis=0), keys, index=True)
    with pytest.raises(ShapeError, match="lexsort"):
        vnp.lexsort((np.ones(2), np.ones(3)))


@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(axis):
    x = np.float32([[3, 1, 3, np.nan, -2], [0, 5, np.inf, 5, -np.inf]])
    last_first = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)  # of equals the last one last, then turned round
    orders = {"largest": x.shape[axis] - 1 - last_first, "smallest": np.argsort(x, axis, kind="stable")}
    for mode, order in orders.items():
        values, indices = vnp.top_k(x, 2, axis=axis, mode=mode)
        np.testing.assert_array_equal(indices, np.take(order, [0, 1], axis))
        np.testing.assert_array_equal(values, np.take_along_axis(x, np.asarray(indices), axis))
    with pytest.raises(ArgumentError, match="'largest' or 'smallest'"):
        vnp.top_k(x, 2, mode="least")
    with pytest.raises(ArgumentError, match="from 0 to 5"):
        vnp.top_k(x, 6)


def test_partition():
    x = sample((4, 7), np.float32, 1)
    for kth in (0, 3, -1):
        got = np.asarray(vnp.partition(x, kth))
        np.testing.assert_array_equal(got[:, kth], np.sort(x)[:, kth])
        assert (got[:, :kth] <= got[:, kth, None]).all()
        order = np.asarray(vnp.argpartition(x, kth, axis=0)) if kth < 4 else None
        np.testing.assert_array_equal(np.take_along_axis(x, order, 0)[kth], np.sort(x, axis=0)[kth])
    with pytest.raises(ArgumentError, match="partition: kth=9"):
        vnp.partition(x, 9)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, bool, vf.dtypes.bfloat16])
@pytest.mark.parametrize("jit", [False, True])
def test_partition_of_many(dtype, jit):
    x = np.random.default_rng(0).normal(0, 40, (60, 100)).astype(dtype)
    if np.issubdtype(x.dtype, np.floating):
        x[3, 5:9] = np.nan
    for axis, kth in ((1, 10), (0, -3), (-1, 99)):
        wanted = np.take(np.sort(x, axis), [kth], axis)
        mapped = vf.jit if jit else lambda function: function
        actual = np.asarray(mapped(lambda x, axis=axis, kth=kth: vnp.partition(x, kth, axis))(vnp.asarray(x)))
        order = mapped(lambda x, axis=axis, kth=kth: vnp.argpartition(x, kth, axis))(vnp.asarray(x))
        assert order.dtype == np.int32 and actual.dtype == x.dtype
        np.testing.assert_array_equal(
            np.sort(order, axis), np.broadcast_to(np.expand_dims(np.arange(x.shape[axis]), 1 - axis % 2), x.shape)
        )
        for values in (actual, np.take_along_axis(x, np.asarray(order), axis)):
            np.testing.assert_array_equal(np.sort(values, axis), np.sort(x, axis))
            np.testing.assert_array_equal(np.take(values, [kth], axis), wanted)
            before, after = np.split(np.moveaxis(values, axis, 0), [kth % x.shape[axis]])
            middle = np.moveaxis(wanted, axis, 0)
            assert not (before > middle).any() and not (after < middle).any()


@pytest.mark.parametrize("copies", [1, 5])  # which are compared with all, and bisected
def test_complex_numbers_with_nan_are_found_where_they_are_sorted(copies):
    parts = np.array([-np.inf, -1.0, 0.0, np.nan], np.float32)
    numbers = np.zeros((4, 4), np.complex64)
    numbers.real, numbers.imag = parts[:, None], parts
    ordered = vnp.sort(np.repeat(numbers.ravel()[::-1], copies))
    first = copies * np.repeat(np.arange(16), copies)
    for search in (vnp.searchsorted, vf.jit(vnp.searchsorted, static_argnums=2)):
        np.testing.assert_array_equal(search(ordered, ordered, "left"), first)
        np.testing.assert_array_equal(search(ordered, ordered, "right"), first + copies)


@pytest.mark.parametrize("function", ["partition", "argpartition"])
@pytest.mark.parametrize("kth", [1.0, (0, 1), "1"])
def test_kth_is_one_integer(function, kth):
    with pytest.raises(ArgumentTypeError, match=f"{function}: kth must be an integer"):
        getattr(vnp, function)(np.arange(3), kth)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    for dtype in REALS:
        a, v = np.sort(sample((9,), dtype, 1)), sample((3, 4), dtype, 2)
        check(lambda xp, a, v: xp.searchsorted(a, v, side=side), a, v, index=True)
        check(lambda xp, a: xp.searchsorted(a, a, side=side), a, index=True)
    check(lambda xp, a, v: xp.searchsorted(a, v, side=side), np.sort(WITH_NAN), WITH_NAN, index=True)
    check(lambda xp, a, v: xp.searchsorted(a, v, side=side), np.ones((0,), np.float32), WITH_NAN, index=True)
    for size in range(1, 10):
        a = np.arange(size, dtype=np.int32)
        check(lambda xp, a, v: xp.searchsorted(a, v, side=side), a, np.arange(-1, size + 2, dtype=np.int32), index=True, traced=False)
    unsorted = sample((6,), np.float32, 3)
    check(lambda xp, a: xp.searchsorted(a, np.float32(0.5), side=side, sorter=xp.argsort(a)), unsorted, index=True)
    pairs = np.sort(np.round(sample((6,), np.complex64, 1)))
    check(lambda xp, a: xp.searchsorted(a, a, side=side), pairs, jax=False)


@pytest.mark.parametrize("right", [False, True])
def test_digitize(right):
    x = sample((10,), np.float32, 1)
    for bins in (np.array([-2.0, 0.0, 0.0, 1.0], np.float32), np.array([2.0, 0.5, -1.0], np.float32), np.array([0.0], np.float32)):
        check(lambda xp, x, b: xp.digitize(x, b, right=right), np.concatenate([x, bins]), bins, index=True)


@pytest.mark.wide
def test_sort_is_differentiable():
    x = np.array([3.0, 1.0, 2.0])
    got = vf.grad(lambda v: vnp.sum(vnp.sort(v) * np.array([1.0, 10.0, 100.0])))(x)
    assert got.tolist() == [100.0, 1.0, 10.0]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: vnp.sort(np.float32(1)), ShapeError), (lambda: vnp.sort(np.ones(2), order="x"), ArgumentError),
        (lambda: vnp.argsort(np.ones(2), kind="bogo"), ArgumentError), (lambda: vnp.searchsorted(np.ones((2, 2)), 1), ShapeError),
        (lambda: vnp.searchsorted(np.ones(2), 1, side="up"), ArgumentError), (lambda: vnp.digitize(1.0, np.ones((2, 2))), ShapeError),
        (lambda: vnp.lexsort([]), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call, error):
    with pytest.raises(error):
        call()
