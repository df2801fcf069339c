"""Convolutions and correlations: SciPy's values, derivatives, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.signal

import volta_fn as vf
from tests.numpy.oracle import ALL, BF16, assert_close, sample, widened
from volta_fn import dtypes
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.scipy import signal

MODES = ["full", "same", "valid"]
#: Pairs of shapes of which one contains the other, and others.
NESTED = [((7,), (3,)), ((3,), (7,)), ((6,), (4,)), ((4,), (4,)), ((5, 6), (2, 3)), ((2, 3), (4, 3)), ((4, 3, 5), (2, 3, 2)), ((), ())]
CROSSED = [((6, 2), (3, 4)), ((5, 1), (1, 4))]


@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_arrays(name: str, mode: str) -> None:
    for dtype in (np.float64, np.complex128, np.int32):
        for shapes in NESTED + (CROSSED if mode != "valid" else []):
            x, y = sample(shapes[0], dtype, 1), sample(shapes[1], dtype, 2)
            for method in ("auto", "direct", "fft"):
                wanted = getattr(scipy.signal, name)(x, y, mode, "direct")
                got = getattr(signal, name)(x, y, mode, method)
                if method != "fft":
                    assert got.dtype == dtype
                assert_close(got, wanted, 1e-5 if dtype == np.int32 else None, (shapes, method))


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_dtypes(dtype: np.dtype) -> None:
    x, y = sample((6,), dtype, 1), sample((3,), dtype, 2)
    exact = [v.astype(np.int64) if v.dtype.kind in "b" else widened(v) for v in (x, y)]
    direct, by_fft = signal.convolve(x, y), signal.fftconvolve(x, y)
    assert direct.dtype == (np.int32 if dtype.kind == "b" else dtype)
    assert_close(direct, np.convolve(*exact), 4e-2 if dtype == BF16 else None)
    assert by_fft.dtype == dtypes.to_inexact(dtype)
    assert_close(by_fft, np.convolve(*exact), 4e-2 if dtype == BF16 else 1e-2 if dtype == np.float16 else 1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["convolve2d", "correlate2d"])
def test_matrices(name: str, mode: str) -> None:
    for dtype in (np.float64, np.complex64, np.int32):
        for shapes in (((5, 6), (2, 3)), ((4, 4), (3, 3)), ((3, 3), (2, 2)), ((2, 3), (4, 3)), ((4, 3), (1, 1))):
            x, y = sample(shapes[0], dtype, 1), sample(shapes[1], dtype, 2)
            for boundary, value in (("fill", 0), ("fill", 2), ("wrap", 0), ("symm", 0)):
                wanted = getattr(scipy.signal, name)(x, y, mode, boundary, value)
                if name == "correlate2d" and mode == "valid" and shapes[0] < shapes[1]:
                    wanted = wanted.conj()  # SciPy conjugates the other matrix where it swaps them, unlike its `correlate`
                assert_close(getattr(signal, name)(x, y, mode, boundary, value), wanted, 1e-5, (shapes, boundary, value))


@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES)
def test_some_axes(mode: str) -> None:
    x, y = sample((3, 6, 4), np.float64, 1), sample((3, 2, 4), np.float64, 2)
    assert_close(signal.fftconvolve(x, y, mode, 1), scipy.signal.fftconvolve(x, y, mode, 1))
    assert_close(signal.fftconvolve(x, y[:1], mode, (1,)), scipy.signal.fftconvolve(x, y[:1], mode, (1,)))


@pytest.mark.wide
@pytest.mark.parametrize("mode", MODES)
def test_derivatives_batches_and_jit(mode: str) -> None:
    x, y = sample((4, 5), np.float64, 1), sample((2, 4), np.float64, 2)
    calls: list[Callable[..., Any]] = [
        lambda a, b: signal.convolve(a, b, mode), lambda a, b: signal.correlate(a, b, mode, "fft"),
        lambda a, b: signal.convolve2d(a, b, mode, "wrap"), lambda a, b: signal.correlate2d(a, b, mode, "symm"),
    ]  # fmt: skip
    for call in calls:
        vf.test_util.check_grads(vf.jit(call), (x, y), 2)
        np.testing.assert_allclose(vf.vmap(call, (0, None))(np.stack([x, -x]), y)[1], -np.asarray(call(x, y)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: signal.convolve(x, x, "most"), ArgumentError), (lambda x: signal.convolve(x, x, method="quick"), ArgumentError),
        (lambda x: signal.correlate(x, x[0]), ShapeError), (lambda x: signal.fftconvolve(x[:0], x), ShapeError),
        (lambda x: signal.convolve(x[:, :1], x[:1], "valid"), ShapeError),
        (lambda x: signal.fftconvolve(x[:, :1], x[:1], "valid"), ShapeError),
        (lambda x: signal.convolve2d(x[0], x), ShapeError), (lambda x: signal.correlate2d(x, x, boundary="edge"), ArgumentError),
        (lambda x: signal.fftconvolve(x, x, axes=2), ShapeError), (lambda x: signal.correlate2d(x, x, "most"), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(np.ones((2, 2), np.float32))


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    assert signal.convolve2d(np.zeros((2, 2)), np.ones((1, 2)), fillvalue=0.1)[0, 0].item() == 0.1
