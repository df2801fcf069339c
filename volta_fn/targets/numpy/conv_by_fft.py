"""Correlation by Fourier transforms, for very large windows.

See `convolution` for the canonical form. A correlation is a product of spectra, one of them conjugate. Transforms are circular, and as long
as all elements that windows meet, so that no window wraps around. Strides are applied to the result; taps are dilated before they are
transformed. The work grows with the size of the input, not of the window, and so does the rounding error of every result, which is relative
to the largest of them.
"""

from collections.abc import Sequence

import numpy as np

from volta_fn.compiler.contractions.sliding_windows import SlidingWindow
from volta_fn.targets.numpy.contraction import working_dtype


def correlate_spectra(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[SlidingWindow]) -> None:
    """Write the canonical correlation y of floats or complex numbers."""
    if 0 in w.shape or 0 in x.shape or not y.size:
        y[...] = 0
        return
    dtype = working_dtype(y.dtype)
    taps, positions = w.shape[3:], y.shape[3:]
    spans = [(p - 1) * v.stride + (k - 1) * v.dilation + 1 for p, k, v in zip(positions, taps, windows, strict=True)]
    axes = tuple(range(1, 1 + len(windows)))
    real = dtype.kind == "f"
    forward, backward = (np.fft.rfftn, np.fft.irfftn) if real else (np.fft.fftn, np.fft.ifftn)
    lengths = tuple([_smooth(span) for span in spans])
    chosen = tuple([slice(0, (p - 1) * v.stride + 1, v.stride) for p, v in zip(positions, windows, strict=True)])
    for group in range(len(x)):
        filters = [forward(_dilated(w[group, o], windows, dtype), lengths, axes) for o in range(w.shape[1])]
        for n in range(x.shape[1]):
            spectrum = forward(_gathered(x[group, n], windows, spans, dtype), lengths, axes)
            for o, taps_spectrum in enumerate(filters):
                product = np.sum(spectrum * _mirrored(taps_spectrum, real), axis=0)
                y[group, n, o] = backward(product, lengths, tuple(a - 1 for a in axes))[chosen]


def _mirrored(spectrum: np.ndarray, real: bool) -> np.ndarray:
    """Return the spectrum of the taps in reverse order about tap 0."""
    if real:
        return spectrum.conj()
    axes = tuple(range(1, spectrum.ndim))
    return np.roll(np.flip(spectrum, axes), 1, axes)


def _dilated(w: np.ndarray, windows: Sequence[SlidingWindow], dtype: np.dtype) -> np.ndarray:
    """Return the taps with zeros between them."""
    sizes = [(k - 1) * v.dilation + 1 for k, v in zip(w.shape[1:], windows, strict=True)]
    out = np.zeros((len(w), *sizes), dtype)
    out[(slice(None), *[slice(None, None, v.dilation) for v in windows])] = w
    return out


def _gathered(x: np.ndarray, windows: Sequence[SlidingWindow], spans: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return the elements that windows meet, zeros where windows leave x."""
    out = np.zeros((len(x), *spans), dtype)
    inside, source = [slice(None)], [slice(None)]
    for size, v, span in zip(x.shape[1:], windows, spans, strict=True):
        first, last = max(v.low, 0), min(v.low + size, span)
        inside.append(slice(first, max(first, last)))
        source.append(slice(first - v.low, max(first, last) - v.low))
    out[tuple(inside)] = x[tuple(source)]
    return out


def _smooth(length: int) -> int:
    """Return the next number with no prime factors but 2, 3 and 5: a fast length."""
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1
