"""`random_bcoo`: layouts, numbers of elements, and what indices promise."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.sparse
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError
from volta_fn.experimental import sparse


@pytest.mark.parametrize("layout", [((5, 4), 0, 0), ((2, 5, 4), 1, 0), ((2, 5, 4), 1, 1)])
@pytest.mark.parametrize("nse", [0.3, 1, 0])
def test_layouts_are_jaxs(layout: Any, nse: float) -> None:
    shape, n_batch, n_dense = layout
    options = {"nse": nse, "n_batch": n_batch, "n_dense": n_dense, "dtype": "float32"}
    m = sparse.random_bcoo(vf.random.key(1), shape, **options)
    theirs = jax.experimental.sparse.random_bcoo(jax.random.key(1), shape, **options)
    assert (m.shape, m.dtype, m.data.shape, m.indices.shape) == (theirs.shape, theirs.dtype, theirs.data.shape, theirs.indices.shape)
    assert np.asarray(m.valid()).all()
    assert m.sum_duplicates(remove_zeros=False).nse == m.nse


@pytest.mark.parametrize("layout", [((5, 4), 0, 2, 1), ((0, 3), 1, 0, 1), ((3, 0), 0, 0, 0), ((), 0, 0, 1)])
def test_arrays_without_sparse_dimensions_or_elements(layout: Any) -> None:
    shape, n_batch, n_dense, count = layout
    m = sparse.random_bcoo(vf.random.key(1), shape, nse=0.3, n_batch=n_batch, n_dense=n_dense)
    assert (m.shape, m.nse, m.todense().shape) == (shape, count, shape)


def test_indices_are_sorted_and_unique() -> None:
    m = sparse.random_bcoo(vf.random.key(2), (3, 6, 6), nse=36, n_batch=1, sorted_indices=True, indices_dtype="int16", dtype="float16")
    np.testing.assert_array_equal(m.indices, np.broadcast_to(np.argwhere(np.ones((6, 6))), (3, 36, 2)))
    assert (m.indices.dtype, m.dtype) == (np.int16, np.float16)
    first, second, _ = np.asarray(sparse.random_bcoo(vf.random.key(3), (3, 100), nse=5, n_batch=1).indices)
    assert (first != second).any()
    assert vf.jit(lambda key: sparse.random_bcoo(key, (3, 3), nse=4, generator=vf.random.normal))(vf.random.key(0)).nse == 4


def test_unfit_arguments_raise() -> None:
    for options in ({"nse": 10}, {"nse": -1}, {"n_batch": 3}):
        with pytest.raises(ArgumentError, match="random_bcoo"):
            sparse.random_bcoo(vf.random.key(0), (3, 3), **options)
