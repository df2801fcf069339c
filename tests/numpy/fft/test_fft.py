"""Fourier transforms against NumPy; derivatives against the transform's matrix."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.narrow_devices import where_the_device_has_the_dtypes
from tests.numpy.oracle import check, sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

#: Small ones, products of small and of large factors, a prime that is a factor, primes that are convolved, and a power of two.
LENGTHS = [1, 2, 3, 8, 61, 64, 65, 66, 67, 100, 134, 257, 1000, 1024]
#: Of the largest element; three roundings for each product that a transform is made of.
TOLERANCE = {np.complex64: 2e-6, np.float32: 2e-6, np.complex128: 1e-14, np.float64: 1e-14}
COMPLEX_TO = ["fft", "ifft", "irfft", "hfft"]
REAL_TO = ["rfft", "ihfft"]


@where_the_device_has_the_dtypes()
def same(name: str, x: np.ndarray, **options: Any) -> None:
    """Our function gives what NumPy's does with twice the digits, in JAX's dtype."""
    got = getattr(vnp.fft, name)(x, **options)
    wanted = getattr(np.fft, name)(x.astype(np.result_type(x, np.float64)), **options)
    real = name in ("irfft", "hfft", "irfftn", "irfft2")
    kind = np.float32 if x.dtype in (np.float32, np.complex64) else np.float64
    assert got.dtype == (kind if real else np.result_type(kind, np.complex64)), name
    assert got.shape == wanted.shape
    bound = TOLERANCE[x.dtype.type] * np.abs(wanted).max(initial=1e-30)
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=0, atol=bound, err_msg=f"{name} {x.shape} {options}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n: int, dtype: Any) -> None:
    real = sample((2, n), dtype, n)
    values = sample((2, n), np.result_type(dtype, np.complex64), n)
    for name in ("fft", "ifft"):
        same(name, values)
    for name in REAL_TO:
        same(name, real)
    for name in ("irfft", "hfft"):
        same(name, values, n=n)


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
def test_axes_sizes_and_norms(norm: str | None) -> None:
    real, values = sample((3, 4, 5), np.float32, 1), sample((3, 4, 5), np.complex64, 1)
    for axis in (0, 1, -1):
        for n in (None, 3, 7):
            for name in COMPLEX_TO:
                same(name, values, n=n, axis=axis, norm=norm)
            for name in REAL_TO:
                same(name, real, n=n, axis=axis, norm=norm)


def test_several_axes() -> None:
    real, values = sample((3, 4, 5), np.float32, 1), sample((3, 4, 5), np.complex64, 1)
    for axes, s in ((None, None), ((0, 2), None), ((2, 0), (4, 2)), ((-1,), (3,)), ((1, 0, 2), (2, 5, 6))):
        for name in ("fftn", "ifftn", "irfftn"):
            same(name, values, axes=axes, s=s)
        same("rfftn", real, axes=axes, s=s, norm="ortho")
    for axes in ((-2, -1), (2, 0)):
        for name in ("fft2", "ifft2", "irfft2"):
            same(name, values, axes=axes)
        same("rfft2", real, axes=axes, s=(5, 3))
    assert vnp.fft.fftn(values, s=(2, 2)).shape == (3, 2, 2)
    assert vnp.fft.fftn(values, axes=()).shape == values.shape


def test_types_are_jaxs_and_traced_calls_agree() -> None:
    for dtype in (np.int32, np.float32, np.complex64):
        x = sample((3, 6), dtype, 1)
        for name in ("fft", "ifft", "irfft", "hfft", "fft2", "fftn"):
            check(lambda xp, x, name=name: getattr(xp.fft, name)(x), x, tolerance=1e-5)
    check(lambda xp, x: xp.fft.rfft(x), sample((3, 70), np.float32, 1), tolerance=1e-5)
    assert vnp.fft.fft(vnp.ones(3, "float16")).dtype == np.complex64
    assert vnp.fft.fft(vnp.ones(3, bool)).dtype == np.complex64


@pytest.mark.parametrize("n", [5, 67, 70])
def test_derivatives(n: int) -> None:
    """Compare with the matrix F of the linear transform: gradients have its transpose."""
    matrix = np.exp(-2j * np.pi / n * np.outer(np.arange(n), np.arange(n)))
    x, c = sample((n,), np.float32, 1), sample((n,), np.complex64, 2)
    loss = lambda x: vnp.sum((c * vnp.fft.fft(x)).real)
    tolerance = {"rtol": 1e-4, "atol": 1e-4}  # float32 sums of n terms of size 1, whose results may cancel. Seen: 1.3e-5
    np.testing.assert_allclose(vf.jit(vf.grad(loss))(x), (matrix.T @ c).real, **tolerance)
    np.testing.assert_allclose(vf.jvp(vnp.fft.fft, (x,), (x * 2,))[1], 2 * matrix @ x, **tolerance)
    half = lambda x: vnp.sum((c[: n // 2 + 1] * vnp.fft.rfft(x)).real)
    np.testing.assert_allclose(vf.grad(half)(x), (matrix.T[:, : n // 2 + 1] @ c[: n // 2 + 1]).real, **tolerance)
    rows = np.stack([x, -x, 2 * x])
    np.testing.assert_allclose(vf.vmap(vnp.fft.fft, 1, 1)(rows.T), matrix @ rows.T, **tolerance)
    there_and_back = lambda x: vnp.fft.irfft(vnp.fft.rfft(x), n)
    np.testing.assert_allclose(vf.jacrev(there_and_back)(x), np.eye(n), atol=1e-5)  # seen: 4e-7


def test_convolution_theorem_of_a_long_prime() -> None:
    """Check that a circular shift rotates phases, without another library."""
    n, by = 1009, 5
    x = sample((n,), np.float32, 1)
    rotated = vnp.fft.fft(x) * np.exp(-2j * np.pi / n * by * np.arange(n)).astype(np.complex64)
    np.testing.assert_allclose(vnp.fft.ifft(rotated).real, np.roll(x, by), atol=2e-5)  # two transforms in float32. Seen: 2e-6


def test_frequencies() -> None:
    for n in (1, 2, 5, 8):
        for d in (1.0, 0.25):
            np.testing.assert_allclose(vnp.fft.fftfreq(n, d), np.fft.fftfreq(n, d), rtol=1e-6)
            np.testing.assert_allclose(vnp.fft.rfftfreq(n, d), np.fft.rfftfreq(n, d), rtol=1e-6)
    assert vnp.fft.fftfreq(4).dtype == np.float32 and vnp.fft.rfftfreq(4, dtype="float16").dtype == np.float16
    for shape in ((5,), (4, 3), (2, 3, 4)):
        x = sample(shape, np.int32, 1)
        for axes in (None, 0, (0, -1)) if len(shape) > 1 else (None, 0):
            check(lambda xp, x, axes=axes: xp.fft.fftshift(x, axes), x)
            check(lambda xp, x, axes=axes: xp.fft.ifftshift(xp.fft.fftshift(x, axes), axes), x)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f.fft(vnp.ones(3), 0), ArgumentError, "fft: n must be positive"),
        (lambda f: f.fft(vnp.ones(3), 2.5), ArgumentTypeError, "fft: n must be an integer"),
        (lambda f: f.fft(vnp.ones((3, 0))), ShapeError, "no elements"),
        (lambda f: f.fft(np.float32(1)), ShapeError, "fft"),
        (lambda f: f.fft(vnp.ones(3), norm="both"), ArgumentError, "norm must be"),
        (lambda f: f.ifft(vnp.ones(3), axis=1), ShapeError, "ifft"),
        (lambda f: f.rfft(vnp.ones(3, "complex64")), ArgumentTypeError, "rfft takes real numbers"),
        (lambda f: f.irfft(vnp.ones(1)), ShapeError, "give n"),
        (lambda f: f.hfft(vnp.ones(1), norm="x"), ArgumentError, "hfft: norm"),
        (lambda f: f.fftn(vnp.ones((3, 3)), (3,), (0, 1)), ArgumentError, "the same length"),
        (lambda f: f.fftn(vnp.ones((3, 3)), axes=(0, 0)), ShapeError, "fftn"),
        (lambda f: f.rfftn(vnp.ones((3, 3)), axes=()), ArgumentError, "at least one axis"),
        (lambda f: f.fft2(vnp.ones((3, 3)), axes=(0,)), ArgumentError, "fft2: axes must be two"),
        (lambda f: f.irfft2(vnp.ones((3, 3)), axes=None), ArgumentError, "irfft2: axes must be two"),
        (lambda f: f.fftfreq(0), ArgumentError, "fftfreq: n must be positive"),
    ],
)
def test_mistakes_are_explained(call: Callable[[Any], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(vnp.fft)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "DCT", (3,)), ArgumentError, "fft_type must be one of FFT, IFFT"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "fft", ()), ArgumentError, "one or more"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "fft", (0,)), ArgumentError, "must be positive"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "fft", (3, 3)), ShapeError, "2 lengths for an array"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "fft", (4,)), ShapeError, "needs 4 elements"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "irfft", (6,)), ShapeError, "needs 4 elements"),
        (lambda: vf.lax.fft(vnp.ones(3, "float32"), "fft", (3,)), DTypeError, "FFT is of complex128, complex64"),
        (lambda: vf.lax.fft(vnp.ones(3, "complex64"), "rfft", (3,)), DTypeError, "RFFT is of float32, float64"),
        (lambda: vf.lax.fft(vnp.ones(3, "float16"), "rfft", (3,)), DTypeError, "got float16"),
    ],
)
def test_mistakes_with_lax_are_explained(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_single_precision_of_any_size() -> None:
    """Check that large numbers do not overflow on the way, and small ones keep digits."""
    x = sample((1000,), np.float32, 1)
    for scale in (1e34, 1e-30):
        same("rfft", x * np.float32(scale))
        same("fft", (x * np.float32(scale)).astype(np.complex64))


def test_names_and_parameters_are_jaxs() -> None:
    jax = pytest.importorskip("jax")
    for name in (n for n in dir(jax.numpy.fft) if not n.startswith("_") and inspect.isfunction(getattr(jax.numpy.fft, n))):
        ours, theirs = (list(inspect.signature(getattr(module, name)).parameters) for module in (vnp.fft, jax.numpy.fft))
        assert ours == theirs, name


@pytest.mark.parametrize("jit", [False, True])
def test_real_spectra_of_one_number(jit: bool) -> None:
    x = np.array([[1.0 + 2.0j, 3.0], [3.0, -4.0j]], np.complex64)
    inverse = lambda x: vnp.fft.irfftn(x, s=(5, 1), axes=(0, 1))
    np.testing.assert_allclose((vf.jit(inverse) if jit else inverse)(x), np.fft.irfftn(x, s=(5, 1), axes=(0, 1)), rtol=1e-5, atol=1e-6)
    forward = lambda x: vnp.fft.rfft(x, n=1)
    np.testing.assert_allclose((vf.jit(forward) if jit else forward)(x.real), np.fft.rfft(x.real, n=1), rtol=1e-6)


def test_complex_frequencies() -> None:
    result = vnp.fft.fftfreq(5, 0.5, dtype="complex64")
    assert result.dtype == np.complex64
    np.testing.assert_allclose(result, np.fft.fftfreq(5, 0.5), rtol=1e-6)
