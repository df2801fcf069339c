"""Ranks, modes and standard errors against SciPy's."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given

import volta_fn as vf
from volta_fn.errors import ArgumentError
from volta_fn.scipy.stats import mode, rankdata, sem

FEW = st.sampled_from([0.0, 1.0, 2.0, -1.5, np.inf, np.nan])
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)
DATA = arrays.arrays(np.float32, SHAPES, elements=FEW) | arrays.arrays(np.int32, SHAPES, elements=st.integers(0, 3))
POLICIES = st.sampled_from(["propagate", "omit"])


def some_axis(draw, array: np.ndarray) -> int | None:
    return draw(st.sampled_from([None, *range(-array.ndim, array.ndim)]))


@given(DATA, st.sampled_from(["average", "min", "max", "dense", "ordinal"]), POLICIES, st.data())
def test_ranks(a, method, policy, data):
    axis = some_axis(data.draw, a)
    expected = scipy.stats.rankdata(a, method, axis=axis, nan_policy=policy)
    result = rankdata(a, method, axis=axis, nan_policy=policy)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(DATA, POLICIES, st.booleans(), st.data())
def test_modes(a, policy, keepdims, data):
    axis = some_axis(data.draw, a)
    expected = scipy.stats.mode(a, axis, policy, keepdims)
    result = mode(a, axis, policy, keepdims)
    assert (result.mode.dtype, result.count.dtype) == (a.dtype, np.int32)
    np.testing.assert_array_equal(result.count, np.nan_to_num(expected.count))
    counted = np.asarray(result.count) > 0
    np.testing.assert_array_equal(np.asarray(result.mode)[counted], np.asarray(expected.mode)[counted])


@pytest.mark.wide
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("policy", ["propagate", "omit"])
def test_standard_errors(axis, policy):
    a = np.random.default_rng(0).normal(size=(5, 4))
    a[1, 2] = np.nan
    for options in ({}, {"ddof": 0}, {"keepdims": True}):
        expected = scipy.stats.sem(a, axis, nan_policy=policy, **options)
        np.testing.assert_allclose(sem(a, axis, nan_policy=policy, **options), expected, rtol=1e-13)
    assert sem(np.arange(6, dtype=np.int32)).dtype == np.float32
    assert sem(np.arange(6, dtype=np.float16)).dtype == np.float16


@pytest.mark.wide
def test_dtypes_and_empty_arrays():
    assert rankdata(np.zeros(3)).dtype == np.float64
    assert rankdata(np.zeros(3, np.int64)).dtype == np.float64
    assert rankdata(np.zeros(3, np.float16)).dtype == np.float32
    assert rankdata(np.zeros((0, 2), np.float32)).shape == (0,)
    assert rankdata(np.zeros((0, 2), np.float32), axis=0).shape == (0, 2)
    assert rankdata(np.array([True, False])).tolist() == [2, 1]
    empty = mode(np.zeros((0, 2), np.float32))
    assert np.isnan(empty.mode).all()
    assert empty.count.tolist() == [0, 0]
    assert mode(3).mode == 3


def test_programs_and_slopes():
    a = np.array([[3.0, 1.0, 3.0], [2.0, 2.0, 5.0]], np.float32)
    np.testing.assert_array_equal(vf.jit(lambda x: rankdata(x, axis=1))(a), scipy.stats.rankdata(a, axis=1))
    np.testing.assert_array_equal(vf.vmap(rankdata)(a), scipy.stats.rankdata(a, axis=1))
    np.testing.assert_array_equal(vf.jit(lambda x: mode(x, 1).mode)(a), [3, 2])
    slope = vf.grad(sem)(a[0])
    step = np.eye(3, dtype=np.float64) * 1e-6
    expected = [(scipy.stats.sem(a[0] + s) - scipy.stats.sem(a[0] - s)) / 2e-6 for s in step]
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


@pytest.mark.parametrize("function", [rankdata, mode, sem])
def test_wrong_policies_are_named(function):
    with pytest.raises(ArgumentError, match="cannot look for NaN"):
        function(np.ones(3), nan_policy="raise")
    with pytest.raises(ArgumentError, match="'drop'"):
        function(np.ones(3), nan_policy="drop")


def test_wrong_methods_are_named():
    with pytest.raises(ArgumentError, match="'middle'"):
        rankdata(np.ones(3), "middle")
