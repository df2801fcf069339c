"""SciPy's further linear algebra: values by dtype and stack, and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.narrow_devices import where_the_device_has_the_dtypes
from tests.numpy.linalg.test_linalg import close, differentiable, make, positive
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.scipy import linalg

DTYPES = ["float32", "float64", "complex64", "complex128"]


@where_the_device_has_the_dtypes()
def agrees(got: Callable[[], Any], expected: Any, dtype: str) -> None:
    """Values and dtypes are those expected."""
    result = got()
    close(result, expected, dtype)
    assert {leaf.dtype.name for leaf in vf.tree.leaves(result)} <= {dtype}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_systems(lower: bool, dtype: str) -> None:
    a = positive(3, 4, 4, dtype=dtype)
    for b in (make(3, 4, 2, dtype=dtype, seed=1), make(3, 4, dtype=dtype, seed=1)):
        for trans in (0, 1, 2, "N", "T", "C"):
            options = {"trans": trans, "lower": lower}
            expected = [scipy.linalg.solve_triangular(x, y, **options) for x, y in zip(a, b, strict=True)]
            agrees(lambda b=b, o=options: linalg.solve_triangular(a, b, **o), np.stack(expected), dtype)
    unit = scipy.linalg.solve_triangular(a[0], b[0], lower=lower, unit_diagonal=True)
    agrees(lambda: linalg.solve_triangular(a[0], b[0], 0, lower, True), unit, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [False, True])
def test_cholesky(lower: bool, dtype: str) -> None:
    a, b = positive(3, 4, 4, dtype=dtype), make(3, 4, 2, dtype=dtype, seed=1)
    triangle = np.tril if lower else np.triu
    expected = np.stack([triangle(scipy.linalg.cho_factor(x, lower)[0]) for x in a])
    agrees(lambda: linalg.cho_factor(triangle(a), lower)[0], expected, dtype)  # one triangle is read
    agrees(lambda: linalg.cho_solve(linalg.cho_factor(a, lower), b), np.linalg.solve(a, b), dtype)
    agrees(lambda: linalg.cho_solve(linalg.cho_factor(a, lower), b[..., 0]), np.linalg.solve(a, b)[..., 0], dtype)
    assert linalg.cho_factor(np.eye(2, dtype=dtype), lower)[1] is lower


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu(dtype: str) -> None:
    for shape in ((4, 4), (5, 3), (3, 5)):
        a = make(2, *shape, dtype=dtype)
        expected = [np.stack(blocks) for blocks in zip(*map(scipy.linalg.lu, a), strict=True)]
        agrees(lambda a=a: linalg.lu(a)[1:], expected[1:], dtype)
        agrees(lambda a=a: linalg.lu(a)[0], expected[0], expected[0].dtype.name)  # a permutation is real
        agrees(lambda a=a: linalg.lu(a, permute_l=True), [expected[0] @ expected[1], expected[2]], dtype)
    a, b = make(2, 5, 5, dtype=dtype), make(2, 5, 3, dtype=dtype, seed=1)
    for trans, op in ((0, a), ("T", a.swapaxes(1, 2)), (2, a.swapaxes(1, 2).conj())):
        solve = lambda trans=trans: linalg.lu_solve(linalg.lu_factor(a), b, trans)
        agrees(solve, np.linalg.solve(op, b), dtype)
        agrees(lambda trans=trans: vf.jit(lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b, trans))(a, b), np.linalg.solve(op, b), dtype)
    agrees(lambda: linalg.lu_solve(linalg.lu_factor(a), b[..., 0]), np.linalg.solve(a, b)[..., 0], dtype)


def test_pivots_are_scipys() -> None:
    a = make(6, 6, dtype="float32")
    pivots = linalg.lu_factor(a)[1]
    assert pivots.dtype == np.int32
    np.testing.assert_array_equal(pivots, scipy.linalg.lu_factor(a)[1])
    close(linalg.lu_solve(scipy.linalg.lu_factor(a), a), np.eye(6), "float32")


def test_structured_matrices() -> None:
    blocks = [np.ones((2, 3), np.float32), np.float32(5), np.arange(2, dtype=np.float32), np.zeros((2, 0), np.float32)]
    np.testing.assert_array_equal(linalg.block_diag(*blocks), scipy.linalg.block_diag(*blocks))
    assert linalg.block_diag().shape == scipy.linalg.block_diag().shape
    assert linalg.block_diag(np.ones((1, 1), np.int32), 2.5).dtype == np.float32
    c, r = np.arange(1, 5, dtype=np.int32), np.array([9, -1, -2], np.int32)
    np.testing.assert_array_equal(linalg.toeplitz(c), scipy.linalg.toeplitz(c))
    np.testing.assert_array_equal(linalg.toeplitz(c, r), scipy.linalg.toeplitz(c, r))
    np.testing.assert_array_equal(vf.jit(linalg.toeplitz)(np.stack([c, -c])), np.stack([scipy.linalg.toeplitz(x) for x in (c, -c)]))
    column = make(3, dtype="complex64")
    np.testing.assert_array_equal(linalg.toeplitz(column), scipy.linalg.toeplitz(column))
    assert linalg.toeplitz(jnp.ones(0), jnp.ones(3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-3, 1, 30])
def test_exponential(size: float, dtype: str) -> None:
    a = (make(3, 4, 4, dtype=dtype) * np.array([size, 0, size / 7])[:, None, None]).astype(dtype)
    expected = scipy.linalg.expm(a.astype(np.result_type(dtype, "float64")))
    agrees(lambda: linalg.expm(a), expected, dtype)
    upper = np.triu(a)
    agrees(lambda: vf.jit(linalg.expm, static_argnames="upper_triangular")(upper, upper_triangular=True), scipy.linalg.expm(upper), dtype)


def test_exponentials_beyond_the_squarings_are_nan() -> None:
    got = linalg.expm(np.stack([np.eye(2), 1e3 * np.eye(2)]).astype(np.float32), max_squarings=2)
    assert np.isfinite(np.asarray(got[0])).all() and np.isnan(np.asarray(got[1])).all()
    assert linalg.expm(jnp.zeros((0, 0))).shape == (0, 0)


@pytest.mark.wide
def test_derivatives() -> None:
    a, b = positive(3, 3), make(3, 2, seed=1)
    symmetric = lambda a: (a + a.swapaxes(-1, -2)) / 2
    differentiable(lambda a, b: linalg.solve_triangular(a, b, "T", True), a, b)
    for lower in (False, True):
        differentiable(lambda a, b, lower=lower: linalg.cho_solve(linalg.cho_factor(symmetric(a), lower), b), a, b)
    differentiable(lambda a, b: linalg.lu_solve(linalg.lu_factor(a), b), a, b)
    differentiable(lambda a: linalg.lu(a)[1:], a)
    differentiable(linalg.expm, make(3, 3) * 4)
    differentiable(linalg.block_diag, a, b)
    differentiable(linalg.toeplitz, make(3), make(4, seed=1))
    batch = np.stack([a, 2 * a])
    np.testing.assert_allclose(vf.vmap(linalg.expm)(batch / 9), linalg.expm(batch / 9))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.solve_triangular(jnp.eye(3), jnp.ones(2)), ShapeError, "solve_triangular: b must have"),
        (lambda: linalg.solve_triangular(jnp.ones((2, 3)), jnp.ones(2)), ShapeError, "square"),
        (lambda: linalg.solve_triangular(jnp.eye(3), jnp.ones(3), 3), ArgumentError, "trans must be"),
        (lambda: linalg.cho_factor(jnp.ones((2, 3))), ShapeError, "cho_factor: a must have square"),
        (lambda: linalg.lu(jnp.ones(3)), ShapeError, "lu: a must be a matrix"),
        (lambda: linalg.lu_factor(jnp.ones(3)), ShapeError, "lu_factor"),
        (lambda: linalg.lu_solve((jnp.eye(3), jnp.ones(3)), jnp.ones(3)), ArgumentTypeError, "pivots must be integers"),
        (lambda: linalg.lu_solve((jnp.eye(3), np.ones(2, np.int32)), jnp.ones(3)), ShapeError, "need pivots of shape"),
        (lambda: linalg.block_diag(jnp.ones((1, 1, 1))), ShapeError, "block_diag"),
        (lambda: linalg.toeplitz(jnp.ones((2, 3)), jnp.eye(3)), ShapeError, "toeplitz"),
        (lambda: linalg.expm(jnp.ones((2, 3))), ShapeError, "expm"),
        (lambda: linalg.expm(jnp.eye(2), max_squarings=1.5), ArgumentTypeError, "max_squarings must be an integer"),
    ],
)
def test_mistakes_are_explained(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shapes", [((2, 3), (4,)), ((1,), (3,)), ((2, 1, 3), (4, 2))])
@pytest.mark.parametrize("name", ["toeplitz", "hankel"])
def test_batches_of_structured_matrices_broadcast(name, shapes):
    c, r = (np.arange(1.0, 1 + np.prod(s), dtype=np.float32).reshape(s) for s in shapes)
    result = getattr(vf.scipy.linalg, name)(c, r)
    batch = np.broadcast_shapes(c.shape[:-1], r.shape[:-1])
    columns, rows = (np.broadcast_to(v, (*batch, v.shape[-1])) for v in (c, r))
    for index in np.ndindex(*batch):
        assert np.array_equal(result[index], getattr(scipy.linalg, name)(columns[index], rows[index]))


@pytest.mark.parametrize("shapes", [((2, 3, 3), (3,)), ((3, 3), (2, 3, 1)), ((2, 1, 3, 3), (4, 3, 2))])
def test_cho_solve_broadcasts(shapes):
    a = 4 * np.eye(3, dtype=np.float32) + np.arange(np.prod(shapes[0]), dtype=np.float32).reshape(shapes[0]) / 99
    factor, b = np.tril(a), np.arange(np.prod(shapes[1]), dtype=np.float32).reshape(shapes[1])
    columns = b[:, None] if b.ndim == 1 else b
    expected = np.linalg.solve(factor @ np.swapaxes(factor, -1, -2), columns)
    actual = vf.scipy.linalg.cho_solve((factor, True), b)
    np.testing.assert_allclose(actual, expected[..., 0] if b.ndim == 1 else expected, rtol=1e-4, atol=1e-4)
