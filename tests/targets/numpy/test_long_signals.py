"""Long signals of real numbers have the spectra that NumPy computes in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn.targets.numpy import fourier
from volta_fn.targets.numpy.long_signals import LONG, is_long, real_spectrum

F32 = np.dtype("float32")


@pytest.mark.parametrize("shape", [(70_000,), (1, 1 << 17, 1), (2 * 3**4 * 5**2 * 7 * 3,)])
def test_spectra_are_numpys(shape: tuple[int, ...]) -> None:
    pytest.importorskip("scipy")
    axis, size = int(np.argmax(shape)), max(shape)
    assert is_long(shape, F32, axis, "RFFT")
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    expected = np.fft.rfft(x.astype(np.float64), axis=axis)
    out = np.empty(expected.shape, np.complex64)
    found = fourier.fft(x, kind="RFFT", length=size, axis=axis)
    assert fourier.fft(x[::1], kind="RFFT", length=size, axis=axis, out=out) is out
    np.testing.assert_array_equal(found, out)
    assert found.dtype == np.complex64 and abs(found - expected).max() < 5e-7 * abs(expected).max()


def test_others_are_transformed_as_they_are() -> None:
    refused: list[tuple[tuple[int, ...], np.dtype, str]] = [
        ((2 * LONG - 2,), F32, "RFFT"),
        ((2 * LONG + 1,), F32, "RFFT"),
        ((2 * LONG,), np.dtype("float64"), "RFFT"),
    ]
    refused += [((2, 2 * LONG), F32, "RFFT"), ((2 * LONG,), F32, "FFT"), ((2 * 65_537,), F32, "RFFT")]
    assert not any(is_long(shape, dtype, len(shape) - 1, kind) for shape, dtype, kind in refused)


def test_pairs_of_real_numbers_are_taken_apart() -> None:
    x = np.random.default_rng(2).normal(size=36).astype(np.float32)
    np.testing.assert_allclose(real_spectrum(np.fft.fft(x.view(np.complex64)).astype(np.complex64)), np.fft.rfft(x), atol=1e-5)
