"""Assignments against SciPy: the least costs, for matrices of all shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.optim import projections

optimize = pytest.importorskip("scipy.optimize")
solve = vf.jit(projections.hungarian_algorithm)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_costs_are_the_least(rows, columns, seed, ties):
    rng = np.random.default_rng(seed)
    cost = rng.integers(-3, 3, (rows, columns)).astype("float32") if ties else rng.normal(size=(rows, columns)).astype("float32")
    i, j = map(np.asarray, solve(cost))
    best = cost[optimize.linear_sum_assignment(cost)].sum()
    assert len(i) == len(j) == min(rows, columns)
    assert len({*i.tolist()}) == len({*j.tolist()}) == len(i) and np.all(np.diff(i) > 0)
    np.testing.assert_allclose(cost[i, j].sum(), best, rtol=1e-5, atol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "float64", "bool"])
def test_dtypes_and_batches(dtype):
    cost = np.random.default_rng(0).uniform(0, 9, (3, 7, 5)).astype(dtype)
    i, j = map(np.asarray, vf.vmap(projections.hungarian_algorithm)(vf.numpy.asarray(cost)))
    assert i.dtype == j.dtype == np.int32
    for matrix, rows, columns in zip(cost.astype("float64"), i, j, strict=True):
        assert matrix[rows, columns].sum() == matrix[optimize.linear_sum_assignment(matrix)].sum()


def test_infinite_costs_are_avoided_and_end():
    cost = np.array([[np.inf, 1.0], [1.0, np.inf]], "float32")
    np.testing.assert_array_equal(projections.hungarian_algorithm(cost)[1], [1, 0])
    for bad in (np.inf, np.nan, -np.inf):
        i, j = map(np.asarray, projections.hungarian_algorithm(np.full((3, 3), bad, "float32")))
        assert sorted(i) == sorted(j) == [0, 1, 2]
    assert projections.base_hungarian_algorithm(np.zeros((0, 3)))[0].shape == (0,)


def test_bad_costs_are_refused():
    with pytest.raises(ShapeError):
        projections.hungarian_algorithm(np.zeros(3))
    with pytest.raises(DTypeError):
        projections.hungarian_algorithm(np.zeros((2, 2), "complex64"))
