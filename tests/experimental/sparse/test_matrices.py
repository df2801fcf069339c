"""The formats `BCSR`, `CSR`, `CSC` and `COO`: batch and dense dimensions, functions, and conversions."""

from __future__ import annotations

from typing import Any

import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import volta_fn as vf
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental import sparse

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return (RNG.integers(-4, 5, shape) * (RNG.random(shape) < 0.4)).astype(np.float32)


LAYOUTS = [((3, 4), 0, 0), ((2, 3, 4), 1, 0), ((2, 3, 4), 0, 1), ((2, 2, 3, 4), 1, 1), ((2, 2, 3, 4), 2, 0)]
LAYOUTS += [((0, 3, 4), 1, 0), ((0, 4), 0, 0)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_by_rows_are_jaxs(layout: Any) -> None:
    shape, n_batch, n_dense = layout
    array = drawn(*shape)
    m = sparse.BCSR.fromdense(array, n_batch=n_batch, n_dense=n_dense)
    assert (m.shape, m.n_batch, m.n_sparse, m.n_dense, m.dtype) == (shape, n_batch, 2, n_dense, np.float32)
    if array.size:
        theirs = jax.experimental.sparse.BCSR.fromdense(jnp.asarray(array), n_batch=n_batch, n_dense=n_dense)
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(m, name), getattr(theirs, name))
    children, static = m.tree_flatten()
    for same in (m, vf.jit(lambda m: m)(m), sparse.BCSR.tree_unflatten(static, children), sparse.BCSR.from_bcoo(m.to_bcoo())):
        np.testing.assert_array_equal(sparse.bcsr_todense(same), array)
    np.testing.assert_array_equal((-m).todense(), -array)
    np.testing.assert_array_equal((m * np.float32(2) + m).todense(), 3 * array)
    np.testing.assert_allclose(m.sum(), array.sum(), rtol=1e-5)
    np.testing.assert_array_equal(m.sum_duplicates().todense(), array)
    np.testing.assert_array_equal(sparse.bcsr_sum_duplicates(m + m).todense(), 2 * array)
    np.testing.assert_array_equal(sparse.bcsr_eliminate_zeros(m * np.float32(0)).todense(), 0 * array)
    other = RNG.normal(size=shape).astype(np.float32)
    data = sparse.bcsr_extract(m.indices, m.indptr, other)
    stored = (array != 0).any(tuple(range(n_batch + 2, len(shape))), keepdims=True)
    np.testing.assert_array_equal(m.with_data(data).todense(), np.where(stored, other, 0))
    vector = np.arange(shape[-1], dtype=np.float32)
    numbers = (((len(shape) - 1,), (0,)), ((), ()))
    np.testing.assert_allclose(sparse.bcsr_dot_general(m, vector, dimension_numbers=numbers), array @ vector)
    for axis in range(len(shape)):
        np.testing.assert_array_equal(sparse.bcsr_concatenate([m, m], dimension=axis).todense(), np.concatenate([array, array], axis))
    if n_batch:
        wide = sparse.bcsr_broadcast_in_dim(m, shape=(3, *shape), broadcast_dimensions=range(1, len(shape) + 1))
        np.testing.assert_array_equal(wide.todense(), np.broadcast_to(array, (3, *shape)))
        rows = vf.vmap(lambda row: row.todense().sum())(m)
        np.testing.assert_allclose(rows, array.sum(tuple(range(1, len(shape)))))


def test_padding_and_rows_without_elements() -> None:
    array = np.array([[0, 0, 0], [1, 0, 2], [0, 0, 0]], np.float32)
    for cls in (sparse.BCSR, sparse.CSR, sparse.CSC, sparse.COO):
        m = cls.fromdense(array, nse=5)
        assert m.nse == 5
        np.testing.assert_array_equal(m.todense(), array)
        np.testing.assert_array_equal(m @ np.ones(3, np.float32), array.sum(1))
        np.testing.assert_array_equal(cls.from_bcoo(m.to_bcoo()).todense(), array)
        np.testing.assert_array_equal(sparse.grad(lambda m: (m.todense() ** 2).sum())(m).todense(), 2 * array)
        children, static = m.tree_flatten()
        np.testing.assert_array_equal(cls.tree_unflatten(static, children).sum(0).todense(), array.sum(0))


@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_functions_of_matrices(kind: str) -> None:
    array, vector = drawn(3, 4), np.arange(4, dtype=np.float32)
    function = lambda name: getattr(sparse, f"{kind}_{name}")
    m = function("fromdense")(array, nse=12, index_dtype="int32")
    np.testing.assert_array_equal(function("todense")(m), array)
    np.testing.assert_allclose(function("matvec")(m, vector), array @ vector)
    np.testing.assert_allclose(function("matvec")(m, vector[:3], transpose=True), array.T @ vector[:3])
    np.testing.assert_allclose(function("matmat")(m, array.T), array @ array.T)
    np.testing.assert_allclose(vf.jit(lambda m: function("matmat")(m, array, transpose=True))(m), array.T @ array)
    with pytest.raises(ShapeError, match="1 dimension"):
        function("matvec")(m, array.T)


@pytest.mark.parametrize("name", ["bcoo", "bcsr", "coo", "csr", "csc"])
def test_zeros_and_ones_of_every_format(name: str) -> None:
    ones, zeros = sparse.eye(3, 4, k=-1, dtype="float32", sparse_format=name), sparse.empty((3, 4), "float32", sparse_format=name)
    assert type(ones).__name__ == type(zeros).__name__ == name.upper()
    np.testing.assert_array_equal(ones.todense(), np.eye(3, 4, -1))
    np.testing.assert_array_equal(zeros.todense(), np.zeros((3, 4)))
    if name.startswith("b"):
        batched = sparse.empty((2, 3, 4), "float32", sparse_format=name, n_batch=1, nse=5)
        assert (batched.n_batch, batched.nse) == (1, 5)
        np.testing.assert_array_equal(batched.todense(), np.zeros((2, 3, 4)))
    np.testing.assert_array_equal(sparse.eye(3, dtype="float32", n_batch=1).todense(), np.eye(3))


def test_scipy_matrices_keep_their_elements() -> None:
    m = sparse.BCSR.from_scipy_sparse(scipy.sparse.csr_matrix(drawn(4, 5)))
    assert isinstance(m, sparse.BCSR) and m.indptr.shape == (5,)


def test_unfit_arguments_raise() -> None:
    m = sparse.BCSR.fromdense(drawn(3, 4))
    with pytest.raises(ShapeError, match="do not make"):
        sparse.BCSR((m.data, m.indices, m.indptr), shape=(4, 4))
    with pytest.raises(ArgumentError, match="without batch"):
        sparse.CSR.fromdense(drawn(2, 3, 4), n_batch=1)
    with pytest.raises(ArgumentError, match="two sparse"):
        sparse.BCSR.fromdense(drawn(2, 3, 4))
    with pytest.raises(ArgumentError, match="sparse_format"):
        sparse.eye(3, sparse_format="dia")
    with pytest.raises(ArgumentError, match="no option"):
        sparse.eye(3, nse=4)


@pytest.mark.parametrize(("n_batch", "n_dense", "nse"), [(0, 0, 4), (1, 0, 1), (0, 1, 4), (2, 0, 1), (1, 1, 1), (0, 2, 1)])
def test_diagonals_store_as_many_elements_as_their_layout_needs(n_batch: int, n_dense: int, nse: int) -> None:
    m = sparse.eye(5, 4, -1, n_batch=n_batch, n_dense=n_dense)
    assert m.nse == nse
    np.testing.assert_array_equal(m.todense(), np.eye(5, 4, -1))


def test_sparsify_takes_and_returns_arrays_by_rows() -> None:
    x = (np.arange(24) % 5 * (np.arange(24) % 3 > 0)).reshape(2, 3, 4).astype("float32")
    m = sparse.BCSR.fromdense(x, n_batch=1)
    wide = sparse.sparsify(lambda m: vf.lax.expand_dims(m, [1]))(m)
    assert isinstance(wide, sparse.BCSR)
    assert wide.n_batch == m[None].n_batch == 2
    np.testing.assert_array_equal(wide.todense(), x[:, None])
    np.testing.assert_array_equal(m[None].todense(), x[None])
    np.testing.assert_array_equal(m[:, None].todense(), x[:, None])
    joined = sparse.sparsify(lambda rows: vf.lax.concatenate(rows, 1))([wide, wide])
    np.testing.assert_array_equal(joined.todense(), np.concatenate([x[:, None]] * 2, 1))
    row = sparse.CSR.fromdense(x[0])[1]
    np.testing.assert_array_equal(row.todense(), x[0, 1])
