"""Resampling of images: JAX's values for every method, derivatives, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
from tests.numpy.oracle import BF16, sample
from volta_fn import image
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.image import ResizeMethod

METHODS = ["nearest", "linear", "lanczos3", "lanczos5", "cubic", "cubic-pytorch", "area"]
#: One axis grows, one shrinks, one stays, one has a single pixel left: JAX compiles each shape anew, so one has to do.
SHAPE = (3, 7, 5, 4)
RESIZED = (5, 3, 5, 1)
DTYPES = [np.float64, np.float32, np.float16, BF16, np.int32, np.uint8, np.complex64]
#: Relative to the largest number.
TOLERANCE = {"float64": 1e-12, "complex128": 1e-12, "float16": 1e-2, "bfloat16": 4e-2}
#: Scales and translations of two axes, at which no weight has a kink.
WARP = ((0.53, 1.3), (0.2, -1.11))


def agrees(got: Any, wanted: Any, where: Any) -> None:
    """Values are those wanted, up to the precision of the dtype."""
    assert got.shape == wanted.shape, where
    tolerance = TOLERANCE.get(got.dtype.name, 1e-5)
    wide = [np.asarray(x).astype(np.complex128) for x in (got, wanted)]
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wide[1]).max(initial=0)), err_msg=str(where))


def exact(function: Callable[..., Any], x: np.ndarray, *arguments: Any) -> Any:
    """Return what JAX computes in 64 bits: of complex numbers, from both components."""
    with jax.enable_x64(True):
        if x.dtype.kind == "c":
            return function(x.real.astype(np.float64), *arguments) + 1j * function(x.imag.astype(np.float64), *arguments)
        return function(x.astype(np.float64), *arguments)


@pytest.mark.wide
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_resize(method: str, antialias: bool) -> None:
    for dtype in DTYPES:
        x = sample(SHAPE, dtype)
        got = image.resize(x, RESIZED, method, antialias)
        agrees(got, exact(jax.image.resize, x, RESIZED, method, antialias), dtype)
        with jax.enable_x64(dtype == np.float64):
            assert got.dtype == jax.eval_shape(lambda x: jax.image.resize(x, RESIZED, method, antialias), x).dtype
    agrees(vf.jit(lambda x: image.resize(x, RESIZED, method, antialias))(x), got, "jit")
    np.testing.assert_array_equal(image.resize(x, SHAPE, method, antialias), x)
    assert image.resize(x, (0, *SHAPE[1:]), method, antialias).shape == (0, *SHAPE[1:])


@pytest.mark.wide
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("method", METHODS[1:])
def test_scale_and_translate(method: str, antialias: bool) -> None:
    for dtype in (np.float64, np.float32, np.complex64):
        x, warp = sample((2, 7, 5), dtype), [np.array(v, np.float64 if dtype == np.float64 else np.float32) for v in WARP]
        got = image.scale_and_translate(x, (2, 6, 6), (1, -1), *warp, method, antialias)
        assert got.dtype == dtype
        wide = [np.array(v) for v in WARP]
        agrees(got, exact(jax.image.scale_and_translate, x, (2, 6, 6), (1, -1), *wide, method, antialias), dtype)


@pytest.mark.wide
@pytest.mark.parametrize("method", METHODS[1:])
def test_derivatives_and_batches(method: str) -> None:
    x = sample((5, 4), np.float64)
    for antialias in (True, False):
        warp = [np.array(v) for v in WARP]
        moved = vf.jit(lambda x, s, t, a=antialias: image.scale_and_translate(x, (4, 4), (0, 1), s, t, method, a))
        vf.test_util.check_grads(moved, (x, *warp), 1)
    smaller = lambda x: image.resize(x, (3, 6), method)
    vf.test_util.check_grads(vf.jit(smaller), (x,), 2)
    stack = np.stack([x, x[::-1]])
    np.testing.assert_allclose(vf.vmap(smaller)(stack), image.resize(stack, (2, 3, 6), method), rtol=1e-12)


def test_nearest_has_derivatives() -> None:
    vf.test_util.check_grads(lambda x: image.resize(x, (3, 6), "nearest"), (sample((5, 4), np.float32),), 2)


def test_methods_have_names() -> None:
    for name in ("nearest", "bilinear", "trilinear", "triangle", "bicubic", "tricubic", "bicubic-pytorch", "area", "lanczos3"):
        mine, jaxs = ResizeMethod.from_string(name), jax.image.ResizeMethod.from_string(name)
        assert (mine.name, mine.value) == (jaxs.name, jaxs.value)
    x = sample((4,), np.float32)
    np.testing.assert_array_equal(image.resize(x, (6,), ResizeMethod.CUBIC), image.resize(x, (6,), "bicubic"))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: image.resize(x, (3,), "linear"), ShapeError), (lambda x: image.resize(x, (3, 3), "best"), ArgumentError),
        (lambda x: image.resize(x, (3, 3), 1), ArgumentTypeError), (lambda x: image.resize(x[:0], (3, 3), "linear"), ShapeError),
        (lambda x: image.resize(x, (3, 3), "linear", precision="x"), ArgumentError),
        (lambda x: image.scale_and_translate(x, (3, 3), (0,), [1.0], [0.0], "nearest"), ArgumentError),
        (lambda x: image.scale_and_translate(x, (2, 3), (0,), [1.0, 2.0], [0.0], "linear"), ShapeError),
        (lambda x: image.scale_and_translate(x, (2, 3), (0,), [1.0], [0.0], "linear"), ShapeError),
        (lambda x: image.scale_and_translate(x, (2, 2), (2,), [1.0], [0.0], "linear"), ShapeError),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(np.ones((2, 2), np.float32))


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    moved = image.scale_and_translate(np.arange(3.0), (3,), (0,), [1.0], [0.1], "linear")
    np.testing.assert_allclose(moved, [0.0, 0.9, 1.9], rtol=1e-14)
