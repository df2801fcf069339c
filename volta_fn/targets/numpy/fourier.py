"""Fourier transforms by NumPy's pocketfft, in the precision of their operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_FORWARD: dict[str, Callable[..., np.ndarray]] = {"FFT": np.fft.fft, "RFFT": np.fft.rfft}
_INVERSE: dict[str, Callable[..., np.ndarray]] = {"IFFT": np.fft.ifft, "IRFFT": np.fft.irfft}


def fft(x: np.ndarray, *, kind: str, length: int, axis: int, out: np.ndarray | None = None) -> np.ndarray:
    """Transform along an axis; for half spectra `length` is that of the full signal.

    NumPy (2.4) transforms single precision in double, with conversions, unless it scales the result, which it does by a number of
    that precision. So it divides by the length here, and the result is multiplied again: by a power of two no digit changes.
    """
    if kind in _INVERSE:
        return _INVERSE[kind](x, length, axis, out=out)
    if x.dtype.char in "dD":
        return _FORWARD[kind](x, length, axis, out=out)
    spectrum = _FORWARD[kind](x, length, axis, "forward", out=out)
    spectrum *= length
    return spectrum
