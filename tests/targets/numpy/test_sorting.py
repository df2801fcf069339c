"""Sorting kernels against Python's sort with the documented order, and against JAX."""

import functools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volta_fn.targets.numpy.reductions import argmax, argmin, rank, sort, stable_order, top_k

FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]
REALS = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "uint64", *FLOATS]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5]


def make(shape, dtype, seed):
    """Elements with many equals, and every special number."""
    rng, kind = np.random.default_rng(seed), np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.choice(np.array([info.min, info.max, 0, 1, 2, 3, info.max - 1], dtype), shape)
    if kind == "c":
        return rng.choice(np.array(SPECIAL, "float32"), (*shape, 2)).view(dtype)[..., 0]
    return rng.choice(np.array(SPECIAL).astype(dtype), shape)


def number_key(x):
    """Return a Python value that compares in the documented order."""
    if isinstance(x, (complex, np.complexfloating)):
        return number_key(x.real) + number_key(x.imag)
    return (bool(np.isnan(x)), 0 if np.isnan(x) else (x.item() if x.dtype.kind in "biu" else float(x)))


def naive_order(keys):
    """Return the stable order along the last axis of one or more keys."""
    order = np.zeros(keys[0].shape, int)
    for place in np.ndindex(*keys[0].shape[:-1]):
        rows = [[number_key(x) for x in key[place]] for key in keys]
        order[place] = sorted(range(keys[0].shape[-1]), key=lambda i: [row[i] for row in rows])
    return order


def same(got, expected):
    """Equal bits, but for the payload of NaN."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    parts = [(got.real, expected.real), (got.imag, expected.imag)] if got.dtype.kind == "c" else [(got, expected)]
    for a, b in parts:
        wide = a.dtype if a.dtype.kind in "biu" else np.float64
        np.testing.assert_array_equal(a.astype(wide), b.astype(wide))
        if a.dtype.kind not in "biu":
            np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from([*REALS, "complex64"]), st.data())
def test_sort_is_the_stable_lexicographic_order(shape, dtype, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    num_keys = data.draw(st.integers(1, 3))
    others = [data.draw(st.sampled_from([*REALS, "complex64"])) for _ in range(num_keys - 1 + data.draw(st.integers(0, 1)))]
    operands = [make(shape, d, i) for i, d in enumerate([dtype, *others])]
    got = sort(*operands, dimension=axis, is_stable=True, num_keys=num_keys)
    order = np.moveaxis(naive_order([np.moveaxis(x, axis, -1) for x in operands[:num_keys]]), -1, axis)
    for g, x in zip(got, operands, strict=True):
        same(g, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("dtype", [*REALS, "complex64"])
def test_sort_agrees_with_jax(dtype):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        keys, values = make((4, 60), dtype, 0), np.arange(240).reshape(4, 60)
        for axis in (0, 1):
            got = sort(keys, values, dimension=axis, is_stable=True, num_keys=1)
            for g, e in zip(got, jax.lax.sort((keys, values), dimension=axis, is_stable=True, num_keys=1), strict=True):
                same(g, np.asarray(e))


def test_an_unstable_sort_sorts():
    x = np.random.default_rng(0).standard_normal(1000)
    (got,) = sort(x, dimension=0, is_stable=False, num_keys=1)
    assert (np.diff(got) >= 0).all() and sorted(got) == sorted(x)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(REALS), st.sampled_from([(0,), (1,), (5,), (2, 40), (3, 0), (0, 9), (40, 2)]), st.data())
def test_top_k_is_the_head_of_the_falling_order(dtype, shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    x = make(shape, dtype, 0)
    last = np.moveaxis(x, axis, -1)
    order = np.zeros((*last.shape[:-1], k), np.int32)
    for place in np.ndindex(*last.shape[:-1]):
        falling = functools.cmp_to_key(lambda a, b: -1 if a > b else int(a < b))
        order[place] = sorted(range(shape[axis]), key=lambda i: falling(number_key(last[place][i])))[:k]
    values, indices = top_k(x, k=k, axis=axis)
    assert indices.dtype == np.int32
    np.testing.assert_array_equal(indices, np.moveaxis(order, -1, axis))
    same(values, np.moveaxis(np.take_along_axis(last, order, -1), -1, axis))


@pytest.mark.parametrize("k", [1, 5, 60])
def test_top_k_agrees_with_jax(k):
    lax = pytest.importorskip("jax").lax
    for dtype in ("float32", "int32", ml_dtypes.bfloat16):
        x = np.random.default_rng(0).permutation(60).astype(dtype)
        x[7:9] = 100
        for got, expected in zip(top_k(x, k=k), lax.top_k(x, k), strict=True):
            np.testing.assert_array_equal(np.asarray(got).astype("float64"), np.asarray(expected).astype("float64"))


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from(REALS), st.sampled_from(["int32", "int64", "uint8"]), st.data())
def test_argmax_and_argmin_find_the_first_extreme_or_nan(shape, dtype, index_dtype, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    if not shape[axis]:
        return
    x = make(shape, dtype, 0)
    last = np.moveaxis(x, axis, -1)
    for find, pick in ((argmax, max), (argmin, min)):
        got = find(x, axes=(axis,), index_dtype=np.dtype(index_dtype))
        assert got.dtype == index_dtype and isinstance(got, np.ndarray)
        for place in np.ndindex(*last.shape[:-1]):
            keys = [number_key(e) for e in last[place]]
            nans = [key for key in keys if key[0]]
            assert got[place] == keys.index(nans[0] if nans else pick(keys))


@pytest.mark.parametrize("dtype", REALS)
def test_ranks_order_as_their_numbers(dtype):
    x = make((50,), dtype, 0)
    ranks = rank(x)
    assert ranks.dtype.itemsize == x.dtype.itemsize
    keys = [number_key(e) for e in x]
    for i in range(50):
        for j in range(50):
            assert (ranks[i] < ranks[j]) == (keys[i] < keys[j])


@pytest.mark.parametrize("dtype", REALS)
def test_stable_order_of_many_equals(dtype):
    x = make((3, 2000), dtype, 0)
    np.testing.assert_array_equal(stable_order(x), naive_order([x]))
