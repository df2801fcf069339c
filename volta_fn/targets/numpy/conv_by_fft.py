"""The canonical correlation (see `convolution.py`) by Fourier transforms, for very large windows.

A correlation is a product of spectra, one of them conjugate. Transforms are circular, and as long as all elements that the windows meet: no
window then wraps around. Strides are taken from the result; taps are dilated before they are transformed. The work grows with the size of
the input and not with the window's, but so does the rounding error of every result: it is relative to the largest of them.
"""

from collections.abc import Sequence

import numpy as np

from volta_fn.targets.numpy.contraction import working_dtype
from volta_fn.targets.numpy.sliding import Window

__all__ = ["correlate_spectra", "spectra_pay"]

#: Nanoseconds for a multiplication of the definition, and for each element and doubling of a transform: about.
_PRODUCT, _TRANSFORM = 0.02, 2.5


def spectra_pay(x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> bool:
    """Whether transforms are likely to be much faster than the definition, of operands in canonical form with these shapes."""
    groups, images, channels, outputs = *x[:3], w[1]
    length = float(np.prod(x[3:], dtype=float) + np.prod(w[3:], dtype=float))
    transforms = groups * (images * channels + channels * outputs + images * outputs) * length * np.log2(length + 2)
    products = groups * images * outputs * channels * float(np.prod(w[3:], dtype=float)) * float(np.prod(y[3:], dtype=float))
    spectral = transforms * _TRANSFORM + 4 * groups * images * outputs * channels * length * _PRODUCT
    return 2 * spectral < products * _PRODUCT


def correlate_spectra(x: np.ndarray, w: np.ndarray, y: np.ndarray, windows: Sequence[Window]) -> None:
    """Write y[g, n, o, p] = sum over c, k of x[g, n, c, p * stride + k * dilation - low] * w[g, o, c, k], of floats or complex numbers."""
    if 0 in w.shape or 0 in x.shape or not y.size:
        y[...] = 0
        return
    dtype = working_dtype(y.dtype)
    taps, places = w.shape[3:], y.shape[3:]
    spans = [(p - 1) * v.stride + (k - 1) * v.dilation + 1 for p, k, v in zip(places, taps, windows, strict=True)]
    axes = tuple(range(1, 1 + len(windows)))
    real = dtype.kind == "f"
    forward, backward = (np.fft.rfftn, np.fft.irfftn) if real else (np.fft.fftn, np.fft.ifftn)
    lengths = tuple([_smooth(span) for span in spans])
    chosen = tuple([slice(0, (p - 1) * v.stride + 1, v.stride) for p, v in zip(places, windows, strict=True)])
    for group in range(len(x)):
        filters = [forward(_dilated(w[group, o], windows, dtype), lengths, axes) for o in range(w.shape[1])]
        for n in range(x.shape[1]):
            spectrum = forward(_met(x[group, n], windows, spans, dtype), lengths, axes)
            for o, taps_spectrum in enumerate(filters):
                product = np.sum(spectrum * _mirrored(taps_spectrum, real), axis=0)
                y[group, n, o] = backward(product, lengths, tuple(a - 1 for a in axes))[chosen]


def _mirrored(spectrum: np.ndarray, real: bool) -> np.ndarray:
    """The spectrum of the taps in reverse order (about tap 0)."""
    if real:
        return spectrum.conj()
    axes = tuple(range(1, spectrum.ndim))
    return np.roll(np.flip(spectrum, axes), 1, axes)


def _dilated(w: np.ndarray, windows: Sequence[Window], dtype: np.dtype) -> np.ndarray:
    """Taps with holes between them."""
    sizes = [(k - 1) * v.dilation + 1 for k, v in zip(w.shape[1:], windows, strict=True)]
    out = np.zeros((len(w), *sizes), dtype)
    out[(slice(None), *[slice(None, None, v.dilation) for v in windows])] = w
    return out


def _met(x: np.ndarray, windows: Sequence[Window], spans: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The elements that windows meet, zeros where they leave x."""
    out = np.zeros((len(x), *spans), dtype)
    inside, source = [slice(None)], [slice(None)]
    for size, v, span in zip(x.shape[1:], windows, spans, strict=True):
        first, last = max(v.low, 0), min(v.low + size, span)
        inside.append(slice(first, max(first, last)))
        source.append(slice(first - v.low, max(first, last) - v.low))
    out[tuple(inside)] = x[tuple(source)]
    return out


def _smooth(length: int) -> int:
    """The smallest number that is not less and has no prime factors but 2, 3 and 5: transforms of such lengths are quick."""
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1
