"""Sparse arrays: what their dense forms give, as JAX's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, GradientError, ShapeError
from volta_fn.experimental import sparse

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    """Return an array of small numbers, of which most are zero."""
    return (RNG.integers(1, 5, shape) * (RNG.random(shape) < 0.4)).astype(np.float32)


A, B, C, T = drawn(3, 4), drawn(4, 3), drawn(3, 4), drawn(2, 3, 4)
V = np.arange(4, dtype=np.float32) - 1
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "fromdense": lambda s, to: to(A),
    "product with a vector": lambda s, to: to(A) @ V,
    "product with a matrix": lambda s, to: to(A) @ B,
    "product from the left": lambda s, to: s.bcoo_dot_general(B, to(A), dimension_numbers=(((1,), (0,)), ((), ()))),
    "product of two": lambda s, to: to(A) @ to(B),
    "contraction": lambda s, to: s.bcoo_dot_general(to(T), T, dimension_numbers=(((2, 0), (2, 0)), ((), ()))),
    "contraction of two": lambda s, to: s.bcoo_dot_general(to(T), to(A), dimension_numbers=(((1, 2), (0, 1)), ((), ()))),
    "full contraction": lambda s, to: s.bcoo_dot_general(to(A), C, dimension_numbers=(((0, 1), (0, 1)), ((), ()))),
    "sum": lambda s, to: to(A).sum(),
    "sum of columns": lambda s, to: to(A).sum(0),
    "sum of some": lambda s, to: s.bcoo_reduce_sum(to(T), axes=(0, 2)),
    "plus": lambda s, to: to(A) + to(C),
    "minus": lambda s, to: to(A) - to(C),
    "times a number": lambda s, to: 3 * to(A),
    "times dense": lambda s, to: to(A) * V,
    "times sparse": lambda s, to: to(A) * to(C),
    "divided": lambda s, to: to(A) / np.float32(2.0),
    "negated": lambda s, to: -to(A),
    "transposed": lambda s, to: to(A).T,
    "permuted": lambda s, to: to(T).transpose((2, 0, 1)),
    "reshaped": lambda s, to: to(T).reshape(4, 6),
    "row": lambda s, to: to(A)[1],
    "block": lambda s, to: to(A)[1:, ::2],
    "last": lambda s, to: to(T)[..., -1],
    "slice": lambda s, to: s.bcoo_slice(to(A), start_indices=(0, 1), limit_indices=(2, 4)),
    "joined": lambda s, to: s.bcoo_concatenate([to(A), to(C)], dimension=1),
    "extracted": lambda s, to: s.bcoo_extract(to(A), C),
    "sorted": lambda s, to: to(A).T.sort_indices(),
    "summed duplicates": lambda s, to: (to(A) + to(C)).sum_duplicates(nse=12),
    "converted": lambda s, to: to(A).astype("int32"),
    "squeezed": lambda s, to: s.bcoo_squeeze(to(A[None]), dimensions=(0,)),
    "identity": lambda s, to: s.eye(3, 4, k=1, dtype="float32"),
    "empty": lambda s, to: s.empty((2, 3), dtype="float32"),
    "dense dimension": lambda s, to: s.BCOO.fromdense(T, n_dense=1) * np.float32(2.0),
    "sum of a dense dimension": lambda s, to: s.BCOO.fromdense(T, n_dense=1).sum(2),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_jaxs(name: str) -> None:
    results = []
    for module, xp in ((sparse, vnp), (jax.experimental.sparse, jnp)):
        result = OPERATIONS[name](module, lambda x, m=module, xp=xp: m.BCOO.fromdense(xp.asarray(x)))
        results.append(np.asarray(result.todense() if hasattr(result, "todense") else result))
    assert results[0].dtype == results[1].dtype
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_contractions_with_batch_dimensions() -> None:
    numbers = (((2,), (2,)), ((0,), (0,)))
    wanted = np.einsum("bij,bkj->bik", T, T)
    for lhs, rhs in ((sparse.BCOO.fromdense(T), T), (T, sparse.BCOO.fromdense(T)), (sparse.BCOO.fromdense(T), sparse.BCOO.fromdense(T))):
        np.testing.assert_allclose(sparse.todense(sparse.bcoo_dot_general(lhs, rhs, dimension_numbers=numbers)), wanted, rtol=1e-6)


def test_transforms() -> None:
    m = sparse.BCOO.fromdense(A)
    np.testing.assert_allclose(vf.jit(lambda m, v: m @ v)(m, V), A @ V, rtol=1e-6)
    np.testing.assert_allclose(vf.jit(lambda x: sparse.BCOO.fromdense(x, nse=12).T @ x)(A), A.T @ A, rtol=1e-6)
    np.testing.assert_allclose(vf.vmap(lambda v: m @ v)(B.T), (A @ B).T, rtol=1e-6)
    np.testing.assert_allclose(vf.grad(lambda x: (sparse.BCOO.fromdense(x, nse=12) @ V).sum())(A), (A != 0) * V, rtol=1e-6)
    stacked = vf.vmap(lambda x: sparse.BCOO.fromdense(x, nse=6))(T)
    np.testing.assert_allclose(
        vf.vmap(lambda m: m.todense())(stacked), np.where(np.cumsum(T.reshape(2, -1) != 0, 1).reshape(T.shape) <= 6, T, 0)
    )


def test_gradients_are_sparse() -> None:
    results = []
    for module, xp in ((sparse, vnp), (jax.experimental.sparse, jnp)):
        m = module.BCOO.fromdense(xp.asarray(A))
        value, (by_m, by_v) = module.value_and_grad(lambda m, v: ((m @ v) ** 2).sum(), argnums=(0, 1))(m, xp.asarray(V))
        assert isinstance(by_m, module.BCOO)
        results.append([np.asarray(x) for x in (value, by_m.todense(), by_v)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    gradient, aux = sparse.grad(lambda m: (m.sum(), 7), has_aux=True)(sparse.BCOO.fromdense(A))
    assert aux == 7
    np.testing.assert_array_equal(gradient.todense(), A != 0)


@pytest.mark.parametrize("name", ["COO", "CSR", "CSC", "BCSR"])
def test_formats_of_matrices(name: str) -> None:
    cls, theirs = getattr(sparse, name), getattr(jax.experimental.sparse, name)
    m, like = cls.fromdense(A), theirs.fromdense(jnp.asarray(A))
    assert repr(m) == repr(like)
    for field in cls.names:
        np.testing.assert_array_equal(getattr(m, field), getattr(like, field))
    np.testing.assert_array_equal(m.todense(), A)
    np.testing.assert_array_equal(m.T.todense(), A.T)
    np.testing.assert_allclose(vf.jit(lambda m: m @ B)(m), A @ B)
    np.testing.assert_allclose(V[:3] @ m, V[:3] @ A)


def test_scipy_matrices() -> None:
    for cls in (sparse.BCOO, sparse.BCSR):
        np.testing.assert_array_equal(cls.from_scipy_sparse(scipy.sparse.csr_matrix(A)).todense(), A)


def test_padding_counts_for_nothing() -> None:
    m = sparse.BCOO((vnp.array([1.0, 5.0, 2.0]), vnp.array([[0, 1], [3, 4], [0, 1]])), shape=(3, 4))
    assert m.sum() == 3.0
    assert m.reshape(12).todense()[1] == 3.0
    assert (m @ vnp.ones((4, 1))).sum() == 3.0
    assert (m * m).todense()[0, 1] == 9.0


def test_unfit_arguments_raise() -> None:
    m = sparse.BCOO.fromdense(A)
    with pytest.raises(ArgumentError, match="n_batch"):
        sparse.BCOO.fromdense(A, n_batch=2, n_dense=1)
    with pytest.raises(ShapeError, match="number of elements"):
        sparse.BCOO((V, np.zeros((3, 2), int)), shape=(3, 4))
    with pytest.raises(ShapeError, match="differ"):
        m @ V[:3]
    with pytest.raises(ShapeError, match="one shape"):
        m + sparse.BCOO.fromdense(B)
    with pytest.raises(ArgumentError, match="positive"):
        m[::-1]


def test_mistakes_name_the_users_function_and_argument() -> None:
    with pytest.raises(GradientError, match="argument 1 of <lambda> has dtype int32"):
        sparse.grad(lambda m, n: m.sum() * n, argnums=(0, 1))(sparse.BCOO.fromdense(A), 3)


@pytest.mark.parametrize("n_batch", [0, 1, 2])
@pytest.mark.parametrize(
    "index",
    [
        np.array([1, 2]),
        (np.array([[1], [2]]), 0),
        (np.array([[1], [2]]), slice(1, None)),
        np.array([True, False, True]),
        (slice(None, 2), np.array([True, False, True, False])),
        (None, 0, np.array([[2]])),
        (slice(None), None, 1),
    ],
)
def test_arrays_and_new_axes_as_indices(index: Any, n_batch: int) -> None:
    m = sparse.BCOO.fromdense(A, n_batch=n_batch)
    np.testing.assert_array_equal(m[index].todense(), A[index])
    np.testing.assert_array_equal(vf.jit(lambda m: m[index])(m).todense(), A[index])


def test_products_and_blocks_store_no_more_than_they_have_indices() -> None:
    x = sparse.BCOO.fromdense(np.ones((3, 4), "float32"))
    product = x @ sparse.BCOO.fromdense(np.ones((4, 2), "float32"))
    assert product.nse == 6
    np.testing.assert_array_equal(product.todense(), np.full((3, 2), 4.0))
    assert sparse.bcoo_slice(x, start_indices=(0, 0), limit_indices=(1, 2)).nse == 2
    assert sparse.bcoo_dynamic_slice(x, (1, 1), (1, 0)).nse == 0


def test_sorting_keeps_shared_indices_shared() -> None:
    indices = vf.numpy.asarray(np.array([[[2], [0], [1]]], "int32"))
    data = np.arange(12, dtype="float32").reshape(4, 3)
    m = sparse.BCOO((data, indices), shape=(4, 3))
    ordered = m.sort_indices()
    assert (ordered.indices.shape, ordered.data.shape) == ((1, 3, 1), (4, 3))
    np.testing.assert_array_equal(ordered.todense(), m.todense())
    np.testing.assert_array_equal(ordered.data, data[:, [1, 2, 0]])


def test_sparse_arrays_have_no_hash_and_a_text_when_damaged() -> None:
    for cls in (sparse.BCOO, sparse.BCSR, sparse.COO, sparse.CSR, sparse.CSC):
        with pytest.raises(TypeError, match="unhashable"):
            hash(cls.fromdense(A))
    m = sparse.BCOO.fromdense(A)
    m.indices = vf.numpy.zeros(0)
    assert repr(m) == "BCOO(<invalid>)"
    texts = []
    vf.jit(lambda m: texts.append(repr(m)) or m)(sparse.BCOO.fromdense(A))
    assert texts[0].endswith(f"Tracer[BCOO(float32[3, 4], nse={(A != 0).sum()})]")


def test_scalars_of_a_batch_have_unique_indices() -> None:
    m = sparse.BCOO.fromdense(A, n_batch=2)
    assert m.unique_indices
    assert m.indices_sorted
