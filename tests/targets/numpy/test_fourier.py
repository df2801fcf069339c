"""Batches of Fourier transforms that are divided among threads have the bits of undivided ones."""

from __future__ import annotations

import numpy as np
import pytest

from volta_fn.targets.numpy import linalg


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize(("shape", "axis"), [((5, 12), 1), ((12, 5), 0), ((1, 4, 6), -1), ((12,), 0)])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("library", ["scipy", "numpy"])
def test_divided_batches(kind: str, shape: tuple[int, ...], axis: int, wide: bool, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "numpy":
        monkeypatch.setattr(linalg, "_scipy", lambda: None)
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) + (0 if kind == "RFFT" else 1j * rng.normal(size=shape))
    x = x if wide else x.astype(np.float32 if kind == "RFFT" else np.complex64)
    length = 2 * (shape[axis] - 1) if kind == "IRFFT" else shape[axis]
    expected = linalg.fft(x, kind=kind, length=length, axis=axis)
    monkeypatch.setattr(linalg, "_LARGE", 1)
    monkeypatch.setattr(linalg, "thread_count", lambda: 3)
    for out in (None, np.empty_like(expected)):
        actual = linalg.fft(x, kind=kind, length=length, axis=axis, out=out)
        assert actual.dtype == expected.dtype and (out is None or actual is out)
        np.testing.assert_array_equal(actual, expected)
