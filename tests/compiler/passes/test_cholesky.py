"""Cholesky factorisations written as panels and products, as GPUs have them, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.compiler.passes.expansions import cholesky_panel_p, expand_cholesky
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.core.staging import eval_jaxpr

CPU = vf.devices("cpu")[0]


def positive_definite(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.startswith("complex") else 0)
    return (x @ x.conj().swapaxes(-1, -2) + np.eye(shape[-1])).astype(dtype)


def expanded(x: np.ndarray, width: int) -> ClosedJaxpr:
    """Return the program of a factorisation, by panels of so many columns."""
    program = vf.make_jaxpr(lambda x: lax.linalg.cholesky(x, symmetrize_input=False))(x)
    return expand_cholesky(program, lambda x: width)


def evaluated(closed: ClosedJaxpr, x: np.ndarray) -> np.ndarray:
    with vf.default_device(CPU):
        (result,) = eval_jaxpr(closed, vf.numpy.asarray(x))
    return np.asarray(result)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("n", "panels"), [(0, 1), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3), (31, 4)])
def test_panels_of_eight_columns(n: int, panels: int, dtype: str) -> None:
    x = positive_definite(dtype, 2, n, n)
    program = expanded(x, 8)
    assert str(program).count("cholesky_panel") == panels
    result = evaluated(program, np.where(np.tri(n, dtype=bool), x, np.nan))
    assert result.dtype == x.dtype
    tolerance = 1e-5 if result.real.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(result, np.linalg.cholesky(x), rtol=tolerance, atol=tolerance)


def test_a_large_matrix() -> None:
    x = positive_definite("float64", 1100, 1100)
    np.testing.assert_allclose(evaluated(expanded(x, 64), x), np.linalg.cholesky(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("place", [0, 7, 8, 12, 19])
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan, -np.inf])
def test_matrices_that_are_not_positive_definite(place: int, value: float) -> None:
    x = positive_definite("float32", 3, 20, 20)
    x[1, place, place] = value
    result = evaluated(expanded(x, 8), x)
    np.testing.assert_allclose(result[[0, 2]], np.linalg.cholesky(x[[0, 2]]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result[1], np.where(np.tri(20, dtype=bool), np.nan, 0))


def test_what_is_not_expanded() -> None:
    program = vf.make_jaxpr(vf.numpy.linalg.cholesky)(np.eye(3, dtype=np.float32))
    assert [eqn.primitive.name for eqn in expand_cholesky(program, lambda x: None).eqns] == [eqn.primitive.name for eqn in program.eqns]
    other = vf.make_jaxpr(lambda x: x + 1)(1.0)
    assert expand_cholesky(other, lambda x: 8) is other


def test_the_panel_is_no_primitive_for_transforms() -> None:
    """It is made after all of them, so it has no rules but those of its shape and its evaluation, and no sample that laws hold for."""
    assert cholesky_panel_p.name not in PRIMITIVES
    assert cholesky_panel_p.jvp is cholesky_panel_p.transpose is cholesky_panel_p.batch is None
    aval = cholesky_panel_p.abstract(ShapedArray((2, 9, 9), np.dtype(np.float32)), width=4)
    assert (aval.shape, aval.dtype) == ((2, 9, 4), np.float32)
