"""`sparsify`: the values of the dense function, sparse where JAX keeps them sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import UnsupportedError
from volta_fn.experimental import sparse

A = np.array([[0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 4, 0]], np.float32)
V = np.arange(4, dtype=np.float32)
#: Functions of a library's NumPy, a matrix and a vector.
FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "product": lambda xp, m, v: xp.dot(m, v),
    "product from the left": lambda xp, m, v: v[:3] @ m,
    "transposed": lambda xp, m, v: m.T @ v[:3],
    "product of two": lambda xp, m, v: m @ m.T,
    "einsum": lambda xp, m, v: xp.einsum("ij,j->i", m, v),
    "sine": lambda xp, m, v: xp.sin(m) @ v,
    "cube of a sum": lambda xp, m, v: (m + m) ** 3,
    "elementwise": lambda xp, m, v: xp.abs(-m * 2 + m * v) / (v + 1),
    "sum": lambda xp, m, v: m.sum(),
    "mean of rows": lambda xp, m, v: m.mean(1),
    "difference": lambda xp, m, v: m - m * m,
    "reshaped": lambda xp, m, v: m.reshape(2, 6)[1:, :5],
    "row": lambda xp, m, v: m[1],
    "joined": lambda xp, m, v: xp.concatenate([m, m]),
    "converted": lambda xp, m, v: m.astype("int32"),
    "rows": lambda xp, m, v: m[np.array([2, 0, 2])],
    "new dimension": lambda xp, m, v: m[None] * 2,
    "reversed": lambda xp, m, v: xp.flip(m, 1),
    "broadcast": lambda xp, m, v: xp.broadcast_to(m, (2, 3, 4)),
    "stacked": lambda xp, m, v: xp.stack([m, m]),
    "squeezed": lambda xp, m, v: xp.squeeze(m[:1]),
    "dense alone": lambda xp, m, v: xp.cos(v),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_what_stays_sparse_are_jaxs(name: str) -> None:
    ours = sparse.sparsify(lambda m, v: vf.jit(lambda m: FUNCTIONS[name](vnp, m, v))(m))(sparse.BCOO.fromdense(A), V)
    theirs_of = jax.experimental.sparse.sparsify(lambda m, v: FUNCTIONS[name](jnp, m, v))
    theirs = theirs_of(jax.experimental.sparse.BCOO.fromdense(A), jnp.asarray(V))
    assert isinstance(ours, sparse.BCOO) == isinstance(theirs, jax.experimental.sparse.BCOO)
    dense, wanted = sparse.todense(ours), jax.experimental.sparse.todense(theirs)
    assert dense.dtype == wanted.dtype
    np.testing.assert_allclose(np.asarray(dense), np.asarray(wanted), rtol=1e-6)


def test_pytrees_and_derivatives() -> None:
    m = sparse.BCOO.fromdense(A)
    result = sparse.sparsify(lambda tree, *, v: {"out": tree["m"] @ v, "m": tree["m"]})({"m": m}, v=V)
    np.testing.assert_array_equal(np.asarray(result["out"]), A @ V)
    assert isinstance(result["m"], sparse.BCOO)

    def total(data: Any) -> Any:
        return (sparse.sparsify(lambda m, v: vnp.sin(m) @ v)(m.replace_data(data), V)).sum()

    gradient = vf.jit(vf.grad(total))(m.data)
    np.testing.assert_allclose(np.asarray(gradient), (np.cos(A) * V)[A != 0], rtol=1e-6)


@pytest.mark.parametrize("function", [lambda m: m + 1.0, vnp.exp, lambda m: 1 / m, lambda m: vnp.maximum(m, 0)])
def test_dense_results_are_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match="todense"):
        sparse.sparsify(function)(sparse.BCOO.fromdense(A))


def test_control_flow_keeps_arrays_sparse() -> None:
    m = sparse.BCOO.fromdense(A)
    for flag in (False, True):
        result = sparse.sparsify(lambda m, flag: vf.lax.cond(flag, lambda m: -m, lambda m: 2 * m, m))(m, flag)
        assert isinstance(result, sparse.BCOO)
        np.testing.assert_array_equal(result.todense(), -A if flag else 2 * A)
    doubled = sparse.sparsify(lambda m: vf.lax.fori_loop(0, 3, lambda i, m: 2 * m, m))(m)
    np.testing.assert_array_equal(doubled.todense(), 8 * A)
    halved = sparse.sparsify(lambda m: vf.lax.while_loop(lambda m: m.sum() > 2, lambda m: m * np.float32(0.5), m))(m)
    np.testing.assert_array_equal(halved.todense(), A / 8)
    rows = sparse.BCOO.fromdense(A, n_batch=1)
    total, stacked = sparse.sparsify(lambda rows: vf.lax.scan(lambda c, row: (c + row @ V, 2 * row), np.float32(0), rows))(rows)
    np.testing.assert_array_equal(total, (A @ V).sum())
    assert stacked.n_batch == 1
    np.testing.assert_array_equal(stacked.todense(), 2 * A)
    with pytest.raises(UnsupportedError, match="batch dimension"):
        sparse.sparsify(lambda rows: vf.lax.scan(lambda c, row: (c + row @ V, None), np.float32(0), rows))(m)


def test_gathers_along_columns_and_blocks() -> None:
    m, batched = sparse.BCOO.fromdense(A), sparse.BCOO.fromdense(A, n_batch=1)
    columns = np.array([[3, 0], [1, 1]])
    for mat in (m, batched):
        np.testing.assert_array_equal(sparse.sparsify(lambda m: m[:, columns])(mat).todense(), A[:, columns])
    np.testing.assert_array_equal(sparse.sparsify(lambda m: m[columns])(m.T).todense(), A.T[columns])
    pairs = sparse.sparsify(lambda m: m[np.array([0, 2]), np.array([1, 2])])(m)
    np.testing.assert_array_equal(pairs.todense(), A[[0, 2], [1, 2]])
    np.testing.assert_array_equal(sparse.sparsify(lambda m: m[np.array([2, 0])])(batched).todense(), A[[2, 0]])
    block = sparse.sparsify(lambda m, i: vf.lax.dynamic_slice(m, (i, 1), (2, 2)))(m, 1)
    np.testing.assert_array_equal(block.todense(), A[1:, 1:3])


@pytest.mark.parametrize("name", ["conj", "bessel_i1e"])
def test_functions_that_keep_zeros(name: str) -> None:
    data, indices = np.array([1.5, -2.0, 0.25], "float32"), np.array([[0, 1], [2, 3], [0, 1]])  # one index twice
    mat = sparse.BCOO((data + (1j if name == "conj" else 0), indices), shape=(3, 4))
    result = sparse.sparsify(getattr(vf.lax, name))(mat)
    np.testing.assert_allclose(result.todense(), getattr(vf.lax, name)(mat.todense()), rtol=1e-6)
