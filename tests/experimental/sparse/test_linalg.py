"""Eigenvalues and solutions of sparse systems, beside NumPy's of dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.experimental import sparse
from volta_fn.experimental.sparse import linalg

RNG = np.random.default_rng(0)


def system(n: int = 6, dtype: str = "float32") -> tuple[Any, np.ndarray]:
    matrix = (RNG.normal(size=(n, n)) * (RNG.random((n, n)) < 0.4) + 4 * np.eye(n)).astype(dtype)
    return sparse.CSR.fromdense(matrix), matrix


@pytest.mark.parametrize("form", ["dense", "sparse", "function"])
@pytest.mark.parametrize("k", [1, 3])
def test_largest_eigenvalues(form: str, k: int) -> None:
    n = 30
    basis = np.linalg.qr(RNG.normal(size=(n, n)))[0]
    values = np.concatenate([np.linspace(0, 1, n - 3), [2, 3, 4]])
    matrix = ((basis * values) @ basis.T).astype(np.float32)
    operand = {"dense": matrix, "sparse": sparse.BCOO.fromdense(matrix), "function": lambda x: matrix @ x}[form]
    theta, vectors, count = linalg.lobpcg_standard(operand, RNG.normal(size=(n, k)).astype(np.float32))
    np.testing.assert_allclose(theta, values[::-1][:k], rtol=1e-4)
    np.testing.assert_allclose(matrix @ vectors, vectors * theta, atol=1e-3)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-4)
    assert 0 < int(count) < 100
    assert int(linalg.lobpcg_standard(operand, RNG.normal(size=(n, k)).astype(np.float32), m=2)[2]) == 2


def test_steps_of_lobpcg() -> None:
    matrix = RNG.normal(size=(8, 8)).astype(np.float32)
    matrix = matrix + matrix.T
    values, vectors = linalg._eigh_ascending(matrix)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(linalg._mm(linalg._mm(vectors, vnp.diag(values)), vectors.T), matrix, atol=1e-4)
    multiply, x = lambda v: matrix @ v, vnp.ones((8, 1))
    assert linalg._check_inputs(multiply, x) is None
    with pytest.raises(ShapeError, match="got a product of shape \\(7, 1\\)"):
        linalg._check_inputs(lambda v: multiply(v)[1:], x)
    with pytest.raises(DTypeError, match="one dtype, got complex64 and float32"):
        linalg._check_inputs(lambda v: multiply(v) * 1j, x)


@pytest.mark.parametrize("shape", [(6,), (6, 2)])
def test_solutions_and_derivatives(shape: tuple[int, ...]) -> None:
    m, matrix = system()
    b = RNG.normal(size=shape).astype(np.float32)
    solve = lambda data, b: linalg.spsolve(data, m.indices, m.indptr, b)
    np.testing.assert_allclose(vf.jit(solve)(m.data, b), np.linalg.solve(matrix, b), rtol=1e-4, atol=1e-5)
    rows, columns = np.nonzero(matrix)
    dense = lambda data, b: vnp.linalg.solve(vnp.zeros((6, 6)).at[rows, columns].set(data), b)
    for number in (0, 1):
        ours = vf.grad(lambda *args: (solve(*args) ** 2).sum(), number)(m.data, b)
        theirs = vf.grad(lambda *args: (dense(*args) ** 2).sum(), number)(m.data, b)
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    _, tangent = vf.jvp(solve, (m.data, b), (m.data, b))
    np.testing.assert_allclose(tangent, np.zeros(shape), atol=1e-4)


def test_solutions_under_vmap_and_of_complex_numbers() -> None:
    m, matrix = system()
    b = RNG.normal(size=(3, 6)).astype(np.float32)
    solutions = vf.vmap(lambda b: linalg.spsolve(m.data, m.indices, m.indptr, b))(b)
    np.testing.assert_allclose(solutions, np.linalg.solve(matrix, b.T).T, rtol=1e-4, atol=1e-5)
    phase = np.complex64(1 + 2j)
    complex_solution = linalg.spsolve(m.data * phase, m.indices, m.indptr, b[0].astype("complex64"))
    np.testing.assert_allclose(complex_solution, np.linalg.solve(matrix * phase, b[0]), rtol=1e-4, atol=1e-5)
    none = linalg.spsolve(np.zeros(0, "float32"), np.zeros(0, "int32"), np.zeros(1, "int32"), np.zeros(0, "float32"))
    assert none.shape == (0,)


def test_unfit_arguments_raise() -> None:
    m, _ = system()
    b = np.ones(6, np.float32)
    with pytest.raises(ShapeError, match="square"):
        linalg.spsolve(m.data, m.indices, m.indptr, b[:5])
    with pytest.raises(ArgumentError, match="reorder"):
        linalg.spsolve(m.data, m.indices, m.indptr, b, reorder=4)
    with pytest.raises(DTypeError, match="int32"):
        linalg.spsolve(m.data, m.indices, m.indptr, b.astype("int32"))
    with pytest.raises(ShapeError, match="5 k < n"):
        linalg.lobpcg_standard(np.eye(5, dtype="float32"), np.ones((5, 1), "float32"))
    with pytest.raises(ShapeError, match="must have the shape"):
        linalg.lobpcg_standard(np.eye(5, dtype="float32"), np.ones((6, 1), "float32"))
    with pytest.raises(DTypeError, match="floating-point"):
        linalg.lobpcg_standard(np.eye(6, dtype="float32"), np.ones((6, 1), "int32"))


def test_equal_eigenvalues_are_in_order() -> None:
    start = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    for diagonal in (np.ones(60), np.where(np.arange(60) < 5, 3.0, 1.0)):
        values, vectors, _ = linalg.lobpcg_standard(vf.numpy.diag(vf.numpy.asarray(diagonal, "float32")), vf.numpy.asarray(start))
        assert (np.diff(values) <= 0).all()
        np.testing.assert_allclose(diagonal[:, None] * np.asarray(vectors), np.asarray(values) * np.asarray(vectors), atol=1e-4)
