"""Cholesky factors on GPUs: the kernel of panels, and programs of panels and products."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.targets.wgsl.library.checking import least_capabilities, results
from tests.targets.wgsl.library.linalg.test_linalg import adjoint, close, matrices
from volta_fn import lax
from volta_fn.compiler.passes.expansions import cholesky_panel_p
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library import panel_width

GPU = vf.devices("gpu")[0]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def positive_definite(dtype: str, *shape: int) -> np.ndarray:
    x = matrices(dtype, shape)
    return (x @ adjoint(x) / max(shape[-1], 1) + np.eye(shape[-1])).astype(dtype)


def panel(x: np.ndarray, width: int) -> np.ndarray:
    """Return the result of the kernel."""
    (actual,) = results("cholesky_panel", [x], {"width": width}, least_capabilities(), [x[..., :width]])
    return actual


def on_gpu(x: np.ndarray) -> np.ndarray:
    """Return the factor, in whose computation the host has no part."""
    before = GPU.backend.gpu.host_steps.copy()
    with vf.default_device(GPU):
        actual = np.asarray(vf.jit(lambda x: lax.linalg.cholesky(x, symmetrize_input=False))(jnp.asarray(x)))
    assert GPU.backend.gpu.host_steps == before
    return actual


@pytest.mark.parametrize(
    ("width", "dtype"),
    [*[(w, dtype) for w in (1, 2, 8, 9, 17, 31, 32) for dtype in DTYPES], *[(w, "float32") for w in (33, 63, 64)]],
)
def test_a_panel(width: int, dtype: str) -> None:
    """Of one tile, and of several, the last of which is not full."""
    for rows in (width, 129):
        x = positive_definite(dtype, 2, rows, rows)
        evaluate = cholesky_panel_p.evaluate
        assert evaluate is not None
        expected = evaluate(x, width=width)
        close(expected, np.linalg.cholesky(x)[..., :width])
        close(panel(x, width), expected)


def test_a_panel_reads_its_own_lower_triangle() -> None:
    x = positive_definite("float32", 70, 70)
    read = np.tri(70, dtype=bool) & (np.arange(70) < 32)
    np.testing.assert_array_equal(panel(np.where(read, x, np.nan), 32), panel(x, 32))


@pytest.mark.parametrize("pivot", [-1.0, 0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_panel_with_a_pivot_that_is_not_positive(dtype: str, pivot: float) -> None:
    """Its lower triangle is NaN; those of other matrices, and what comes after the panel, make no difference."""
    x = positive_definite(dtype, 3, 40, 40)
    right = panel(x, 9)
    x[1, 8, 8] = pivot
    x[2, 9, 9] = pivot
    actual = panel(x, 9)
    np.testing.assert_array_equal(actual[[0, 2]], right[[0, 2]])
    np.testing.assert_array_equal(np.isnan(actual[1]), np.tri(40, 9, dtype=bool))
    assert (actual[1][~np.tri(40, 9, dtype=bool)] == 0).all()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 5, 5), (0, 70, 70)])
def test_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    assert on_gpu(x).shape == shape
    assert panel(x, min(shape[-1], 32)).shape == (*shape[:-1], min(shape[-1], 32))


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        *[(n, dtype) for n in (1, 31, 32, 33) for dtype in DTYPES],
        *[(n, dtype) for n in (63, 64, 65) for dtype in ("float32", "float64", "complex64")],
        *[(n, "float32") for n in (127, 128, 129)],
    ],
)
def test_sizes(n: int, dtype: str) -> None:
    """The edges of panels; only the lower triangle is read."""
    x = positive_definite(dtype, 2, n, n)
    close(on_gpu(np.where(np.tri(n, dtype=bool), x, np.nan)), np.linalg.cholesky(x))


def test_widths() -> None:
    def width(n: int, dtype: str) -> int | None:
        return panel_width(ShapedArray((n, n), np.dtype(dtype)), least_capabilities()._replace(float64=False))

    assert [width(n, "float32") for n in (0, 1, 64, 65, 512, 513, 4096)] == [64, 64, 64, 32, 32, 64, 64]
    assert [width(n, "complex64") for n in (64, 512, 513)] == [32, 32, 32]
    assert width(64, "float64") is None  # a device without them


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("place", [0, 31, 32, 40, 65, 69])
def test_matrices_that_are_not_positive_definite(place: int, dtype: str) -> None:
    """Their lower triangles are NaN, whichever panel finds it; those of others are not."""
    x = positive_definite(dtype, 3, 70, 70)
    x[1, place, place] = -1
    actual = on_gpu(x)
    close(actual[[0, 2]], np.linalg.cholesky(x[[0, 2]]))
    np.testing.assert_array_equal(np.isnan(actual[1]), np.tri(70, dtype=bool))
    assert (np.triu(actual[[0, 2]], 1) == 0).all() and (actual[1][~np.tri(70, dtype=bool)] == 0).all()


def test_numbers_that_are_not_finite() -> None:
    x = positive_definite("float32", 4, 70, 70)
    x[0, 69, 0], x[1, 69, 69], x[2, 50, 40], x[3, 0, 69] = np.inf, np.inf, np.nan, np.nan
    actual = on_gpu(x)
    assert [np.isnan(a).any() for a in actual] == [True, True, True, False]
    np.testing.assert_array_equal(np.isnan(actual[:3]), np.broadcast_to(np.tri(70, dtype=bool), (3, 70, 70)))


def test_large_matrices() -> None:
    """By panels of 64 columns, of any number of rows."""
    x = positive_definite("float32", 1100, 1100)
    close(on_gpu(x), np.linalg.cholesky(x.astype(np.float64)))


def test_stacks_of_large_matrices_in_a_loop() -> None:
    """A body of a loop is expanded, too."""
    x = positive_definite("float32", 3, 66, 66)
    before = GPU.backend.gpu.host_steps.copy()
    with vf.default_device(GPU):
        _, factors = vf.jit(lambda x: lax.scan(lambda c, m: (c, jnp.linalg.cholesky(m)), 0.0, x))(jnp.asarray(x))
    assert GPU.backend.gpu.host_steps == before
    close(np.asarray(factors), np.linalg.cholesky(x))


@pytest.mark.parametrize("n", [5, 70])
def test_derivatives_and_batches(n: int) -> None:
    x, tangent = positive_definite("float32", 3, n, n), matrices("float32", (3, n, n))
    tangent = tangent + adjoint(tangent)
    weights = matrices("float32", (n, n))

    def loss(x: vf.Array) -> vf.Array:
        return (jnp.linalg.cholesky(x) * weights).sum()

    functions = [
        lambda x, t: vf.vmap(jnp.linalg.cholesky)(x),
        lambda x, t: vf.vmap(jnp.linalg.cholesky, in_axes=2, out_axes=1)(jnp.moveaxis(x, 0, 2)),
        lambda x, t: vf.jvp(jnp.linalg.cholesky, (x,), (t,))[1],
        lambda x, t: vf.vmap(vf.grad(loss))(x),
    ]
    for function in functions:
        with vf.default_device(GPU):
            actual = np.asarray(vf.jit(function)(jnp.asarray(x), jnp.asarray(tangent)))
        with vf.default_device(vf.devices("cpu")[0]):
            expected = np.asarray(vf.jit(function)(jnp.asarray(x.astype(np.float64)), jnp.asarray(tangent.astype(np.float64))))
        close(actual, expected)


@pytest.mark.parametrize("n", [5, 70])
def test_systems(n: int) -> None:
    x, b = positive_definite("float32", n, n), matrices("float32", (n, 3))
    expected = np.linalg.solve(x.astype(np.float64), b)
    before = GPU.backend.gpu.host_steps.copy()
    with vf.default_device(GPU):
        solved = vf.jit(lambda x, b: vf.scipy.linalg.solve(x, b, assume_a="pos"))(x, b)
        by_factor = vf.jit(lambda x, b: vf.scipy.linalg.cho_solve(vf.scipy.linalg.cho_factor(x, lower=True), b))(x, b)
    assert GPU.backend.gpu.host_steps == before
    close(np.asarray(solved), expected)
    close(np.asarray(by_factor), expected)
