"""`map_coordinates`: SciPy's and JAX's values, derivatives, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import scipy.ndimage

import volta_fn as vf
from tests.numpy.oracle import ALL, assert_close, sample, widened
from volta_fn.errors import ArgumentError, ShapeError, UnsupportedError
from volta_fn.scipy.ndimage import map_coordinates

#: By mode, SciPy's name for it.
MODES = {
    "constant": "grid-constant", "nearest": "nearest", "mirror": "mirror", "wrap": "grid-wrap", "reflect": "reflect",
    "grid-constant": "grid-constant", "grid-wrap": "grid-wrap",
}  # fmt: skip
POINTS = [np.random.default_rng(i).uniform(-11, 14, (2, 6)) for i in range(2)]


@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [0, 1])
def test_values_are_scipys(order: int, mode: str) -> None:
    for shape in ((4, 5), (1, 3)):
        x = sample(shape, np.float64)
        wanted = scipy.ndimage.map_coordinates(x, POINTS, order=order, mode=MODES[mode], cval=2.5)
        assert_close(map_coordinates(x, POINTS, order, mode, 2.5), wanted, 1e-10)
        assert_close(vf.jit(lambda x, p: map_coordinates(x, p, order, mode, 2.5))(x, POINTS), wanted, 1e-10)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [d for d in ALL if d.kind != "b"], ids=str)
def test_dtypes(dtype: np.dtype) -> None:
    x = sample((4, 5), dtype)
    for order in (0, 1):
        got = map_coordinates(x, POINTS, order, "reflect")
        assert got.dtype == dtype
        exact = map_coordinates(widened(x).astype(complex), POINTS, order, "reflect")
        wanted = np.asarray(exact) if dtype.kind == "c" else np.asarray(exact.real)
        if dtype.kind in "iu":
            wanted = np.trunc(wanted + np.where(wanted < 0, -0.5, 0.5))
        assert_close(got, wanted)


def test_integer_coordinates_and_no_dimensions() -> None:
    x = np.arange(6).reshape(2, 3)
    points = [np.array([[0, 1, 5]]), np.array([[2], [0]])]
    got = map_coordinates(x, points, 0, "wrap")
    np.testing.assert_array_equal(got, jax.scipy.ndimage.map_coordinates(x, points, 0, "wrap"))
    assert map_coordinates(np.float32(3), [], 1) == 3


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror", "wrap", "reflect"])
def test_derivatives_and_batches(mode: str) -> None:
    x = sample((4, 5), np.float64)
    vf.test_util.check_grads(vf.jit(lambda x, *p: map_coordinates(x, p, 1, mode, 0.5)), (x, *POINTS), 1)
    vf.test_util.check_grads(vf.jit(lambda x: map_coordinates(x, POINTS, 0, mode)), (x,), 2)
    stack = np.stack([x, -x])
    many = vf.vmap(lambda x: map_coordinates(x, POINTS, 1, mode))(stack)
    np.testing.assert_allclose(many, np.stack([np.asarray(map_coordinates(y, POINTS, 1, mode)) for y in stack]), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: map_coordinates(x, [x], 1), ShapeError), (lambda x: map_coordinates(x[:0], [x, x], 1), ShapeError),
        (lambda x: map_coordinates(x, [x, x], 3), UnsupportedError), (lambda x: map_coordinates(x, [x, x], 1, "edge"), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(np.ones((2, 2), np.float32))


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    assert map_coordinates(np.zeros(2), [5], 1, cval=0.1).item() == 0.1
    assert map_coordinates(np.arange(2.0), [0.1], 1).item() == 0.1
