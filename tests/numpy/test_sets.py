"""Sets against NumPy, and against JAX where the size is given."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import BF16, check, sample
from volta_fn.errors import ConcretizationError

OPTIONS = [
    {},
    {"return_index": True},
    {"return_inverse": True},
    {"return_counts": True},
    {"return_index": True, "return_inverse": True, "return_counts": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unique(options):
    for dtype in (np.int32, np.float32, BF16, np.uint8, bool, np.complex64):
        x = np.round(sample((4, 5), dtype, 1).astype(np.complex64 if dtype == np.complex64 else np.float32)).astype(dtype)
        check(lambda xp, x: xp.unique(x, **options), x, jax=False, traced=False)
    for axis in (0, 1):
        check(lambda xp, x, axis=axis: xp.unique(x, axis=axis, **options), sample((5, 3), np.int32, 2, 0, 1), jax=False, traced=False)
    check(lambda xp, x: xp.unique(x, **options), np.ones((0,), np.float32), jax=False, traced=False)
    check(lambda xp, x: xp.unique(x, **options), np.array([2.0, np.nan, 1.0, np.nan], np.float32), jax=False, traced=False)
    check(lambda xp, x: xp.unique(x, equal_nan=False, **options), np.array([2.0, np.nan, np.nan], np.float32), jax=False, traced=False)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_unique_of_a_given_size(size):
    """Check that missing results repeat the smallest element, with a count of 0."""
    x = np.array([3, 1, 3, 7, 1, 0, 9], np.int32)
    for options in OPTIONS:
        got = vf.jit(lambda x, o=options: vnp.unique(x, size=size, **o))(x)
        results = dict(zip(["values", *options], got if options else [got], strict=True))
        exact = dict(zip(["values", *options], np.unique(x, **options) if options else [np.unique(x)], strict=True))
        fillers = {"values": exact["values"][0], "return_index": 5, "return_counts": 0}
        for name, wanted in exact.items():
            if name != "return_inverse":
                wanted = np.concatenate([wanted, np.full(size, fillers[name])])[:size]
            np.testing.assert_array_equal(np.asarray(results[name]), wanted, err_msg=name)
    assert vnp.unique(x, size=8, fill_value=-5).tolist() == [0, 1, 3, 7, 9, -5, -5, -5]
    with pytest.raises(ConcretizationError, match="size="):
        vf.jit(vnp.unique)(x)


def test_unique_of_the_array_api():
    x = np.array([[3, 1], [3, 7]], np.int32)
    everything = vnp.unique_all(x)
    assert everything.values.tolist() == [1, 3, 7]
    assert everything.indices.tolist() == [1, 0, 3]
    assert everything.inverse_indices.tolist() == [[1, 0], [1, 2]]
    assert everything.counts.tolist() == [1, 2, 1]
    assert [v.tolist() for v in vnp.unique_counts(x)] == [[1, 3, 7], [1, 2, 1]]
    assert vnp.unique_inverse(x).inverse_indices.shape == (2, 2)
    assert vnp.unique_values(x).tolist() == [1, 3, 7]


@pytest.mark.parametrize("invert", [False, True])
def test_isin(invert):
    x, tests = sample((3, 4), np.int32, 1, 0, 9), sample((5,), np.int32, 2, 0, 9)
    check(lambda xp, x, t: xp.isin(x, t, invert=invert), x, tests)
    check(lambda xp, x: xp.isin(x, np.ones((0,), np.int32), invert=invert), x)
    check(lambda xp, x, t: xp.isin(x, t, invert=invert), np.array([1.0, np.nan], np.float32), np.array([np.nan, 1.0], np.float32))
    assert vnp.isin(x, [1, 2], invert=invert).shape == (3, 4)
    for number in (-1, 300, 2**34, 2**63):
        assert vnp.isin(np.array([1, 255], np.uint8), number, invert=invert).tolist() == [invert, invert]


@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_set_operations(name):
    a, b = np.array([5, 1, 3, 3, 9], np.int32), np.array([[3, 4], [9, 9]], np.int32)
    check(lambda xp, a, b: getattr(xp, name)(a, b), a, b, jax=False, traced=False)
    check(lambda xp, a, b: getattr(xp, name)(a, b), b, a, jax=False, traced=False)
    check(lambda xp, a, b: getattr(xp, name)(a, b), a, np.ones((0,), np.int32), jax=False, traced=False)
    check(lambda xp, a, b: getattr(xp, name)(a, b), np.ones((0,), np.int32), a, jax=False, traced=False)
    exact = np.asarray(getattr(np, name)(a, b))
    sized = vf.jit(lambda a, b: getattr(vnp, name)(a, b, size=exact.size + 2, fill_value=-1))(a, b)
    np.testing.assert_array_equal(np.asarray(sized), [*exact, -1, -1])


@pytest.mark.parametrize("name", ["setdiff1d", "setxor1d"])
@pytest.mark.parametrize("fill_value", [None, -1])
def test_set_operations_of_a_given_size(name, fill_value):
    jax = pytest.importorskip("jax")
    empty = np.ones((0,), np.int32)
    for a, b in ((np.array([5, 1, 3, 3], np.int32), np.array([3, 4], np.int32)), (np.array([7], np.int32), empty), (empty, empty)):
        for size in (1, 2, 6):
            options = {"size": size, "fill_value": fill_value}
            got = vf.jit(lambda a, b, o=options: getattr(vnp, name)(a, b, **o))(a, b)
            assert got.tolist() == getattr(jax.numpy, name)(a, b, **options).tolist()


def test_intersection_with_indices():
    a, b = np.array([5, 1, 3, 3], np.int32), np.array([3, 4, 5], np.int32)
    check(lambda xp, a, b: xp.intersect1d(a, b, return_indices=True), a, b, jax=False, traced=False)


def test_a_difference_has_the_dtype_of_the_minuend():
    result = vnp.setdiff1d(np.int8([1, 2, 3]), np.float32([2]))
    assert (result.dtype, result.tolist()) == (np.dtype(np.int8), [1, 3])


@pytest.mark.wide
def test_difference_of_unique_arrays_keeps_the_order():
    assert vnp.setdiff1d(np.array([5, 1, 3]), np.array([1]), assume_unique=True).tolist() == [5, 3]


def test_indices_of_missing_elements_are_the_length() -> None:
    common, *at = vnp.intersect1d(np.array([0, 7]), np.array([0, 5, 9]), return_indices=True, size=3)
    assert [x.tolist() for x in (common, *at)] == [[0, 0, 0], [0, 2, 2], [0, 3, 3]]


def test_a_complex_number_with_a_nan_in_either_part_is_nan() -> None:
    x = np.array([complex(a, b) for a in (0.0, 1.0, np.nan) for b in (1.0, np.nan)], np.complex64)
    values, counts = vnp.unique(x, return_counts=True)
    wanted, wanted_counts = np.unique(x, return_counts=True)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(counts, wanted_counts)


def test_exclusive_elements_of_unique_arrays() -> None:
    x, y = np.array([5, 1, 3]), np.array([3, 4])
    np.testing.assert_array_equal(vnp.setxor1d(x, y, assume_unique=True), np.setxor1d(x, y, assume_unique=True))
    assert vnp.setxor1d(x[:0], y[:0], assume_unique=True).size == 0
