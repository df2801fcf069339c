"""Spectra of a signal's segments: power densities, and short-time transforms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.aval import as_integer
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.numpy.arguments import axis_of, is_complex, promote_inexact
from volta_fn.numpy.padding import pad
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.scipy.signal.trends import detrend as without_trend
from volta_fn.scipy.signal.windows import window_of

#: By SciPy's name of a boundary, the arguments of `numpy.pad`.
_BOUNDARIES: dict[str, dict[str, str]] = {
    "zeros": {"mode": "constant"},
    "constant": {"mode": "edge"},
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}


class _Segments(NamedTuple):
    """How a signal is cut to segments, and how long their transforms are."""

    length: int
    step: int
    nfft: int
    window: Array


def welch(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Estimate the power spectral density of a signal (Welch, 1967).

    Args:
        x: a signal; integers become floats.
        fs: its sampling frequency.
        window: the name of a window (those other than "hann" need SciPy), a tuple of name and parameters, or its numbers.
        nperseg: the length of a segment (default: 256, the window's, or the signal's if that is shorter).
        noverlap: how many elements two segments share (default: half of them).
        nfft: the length of the transforms, at least `nperseg`, whose end is filled with zeros.
        detrend: "constant", "linear", a function, or False: what is done to each segment first.
        return_onesided: leave out negative frequencies of real signals.
        scaling: "density" in units of x² / fs, "spectrum" in units of x².
        axis: the axis along which the signal runs.
        average: "mean" or "median" over the segments.

    Returns:
        ``(frequencies, power)``; `power` has frequencies along `axis`.

    Raises `ArgumentError` and `ShapeError` for arguments that do not fit; warns if `nperseg` is longer than the signal.

    >>> frequencies, power = vf.scipy.signal.welch(jnp.sin(jnp.arange(64.0) * jnp.pi / 4), nperseg=16)
    >>> frequencies[power.argmax()]
    Array(0.125, dtype=float32)
    """
    frequencies, power = _csd("welch", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average)
    return frequencies, power.real


def csd(
    x: Any,
    y: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Estimate the cross power spectral density of two signals.

    `y` is a second signal (None: `x`), to whose spectra the conjugate ones of `x` are multiplied; the shorter one is continued by zeros.
    For the other arguments, the result and errors see `welch`.

    >>> x = jnp.sin(jnp.arange(64.0) * jnp.pi / 4)
    >>> vf.scipy.signal.csd(x, -x, nperseg=16)[1].real.argmin()
    Array(2, dtype=int32)
    """
    return _csd("csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average)


def stft(
    x: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Array, Array, Array]:
    """Return the spectra of a signal's segments, the short-time Fourier transform.

    Args:
        boundary: what continues the signal by half a segment at both ends: "zeros", "constant", "even", "odd" (mirror images), or None.
        padded: continue the signal by zeros, so that segments cover all of it.

    For the other arguments and errors see `welch`.

    Returns:
        ``(frequencies, times, spectra)``; `spectra` has frequencies along `axis`, and times along the last axis.

    >>> frequencies, times, spectra = vf.scipy.signal.stft(jnp.arange(8.0), nperseg=4)
    >>> spectra.shape
    (3, 5)
    """
    (value,) = promote_inexact("stft", x)
    signal = vnp.moveaxis(value, axis_of("stft", axis, value.ndim), -1)
    if boundary is not None and boundary not in _BOUNDARIES:
        raise ArgumentError(f"stft: boundary must be None or one of {', '.join(map(repr, _BOUNDARIES))}, got {boundary!r}")
    cut = _segments("stft", signal, window, nperseg, noverlap, nfft)
    half = 0 if boundary is None else cut.length // 2
    if boundary is not None:
        signal = _extended(signal, half, half, **_BOUNDARIES[boundary])
    if padded:
        signal = _extended(signal, 0, -(signal.shape[-1] - cut.length) % cut.step)
    spectra = _spectra(signal, cut, detrend, return_onesided)
    spectra = spectra / cut.window.sum().astype(spectra.dtype)
    frequencies = _frequencies(cut, fs, signal, return_onesided)
    first = 0 if boundary else cut.length / 2
    times = vnp.asarray(np.arange(spectra.shape[-2]) * cut.step + first).astype(frequencies.dtype) / fs
    return frequencies, times.astype(frequencies.dtype), vnp.moveaxis(spectra, -1, axis_of("stft", axis, value.ndim))


def istft(
    Zxx: Any,
    fs: Any = 1.0,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:
    """Invert `stft`: return the signal whose segments have spectra nearest to these.

    Args:
        Zxx: spectra of segments.
        fs, window, noverlap, nfft: as given to `stft`.
        nperseg: the length of a segment (default: what the number of frequencies says).
        input_onesided: whether negative frequencies are left out.
        boundary: whether `stft` continued the signal at its ends.
        time_axis, freq_axis: the axes of times and frequencies.

    Returns:
        ``(times, signal)``. Segments are added up with their windows, and divided by the sum of the squared windows (Griffin and
        Lim, 1984).

    Raises `ArgumentError` and `ShapeError` for arguments that do not fit.

    >>> x = jnp.array([1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0])
    >>> vf.scipy.signal.istft(vf.scipy.signal.stft(x, nperseg=4)[2])[1].round(3)
    Array([1., 2., 3., 2., 1., 0., 1., 2.], dtype=float32)
    """
    (value,) = promote_inexact("istft", Zxx)
    if value.ndim < 2:
        raise ShapeError(f"istft: spectra have an axis of times and one of frequencies, got shape {value.shape}")
    time_dim, freq_dim = axis_of("istft", time_axis, value.ndim), axis_of("istft", freq_axis, value.ndim)
    if time_dim == freq_dim:
        raise ArgumentError(f"istft: time_axis and freq_axis must differ, both are {time_dim}")
    spectra = vnp.moveaxis(value, (time_dim, freq_dim), (-2, -1))
    count = 2 * (spectra.shape[-1] - 1) if input_onesided else spectra.shape[-1]
    length = count if nperseg is None else as_integer(nperseg, "istft: nperseg")
    if nfft is None:
        nfft = count + (input_onesided and length == count + 1)
    dtype = dtypes.real_dtype(dtypes.complex_dtype(spectra.dtype))
    cut = _checked("istft", window, length, noverlap, nfft, dtype)
    inverse = vnp.fft.irfft if input_onesided else vnp.fft.ifft
    segments = inverse(spectra, cut.nfft)[..., : cut.length] * cut.window.sum()
    signal = _added_up(segments * cut.window, cut)
    weight = _added_up(broadcast_to(cut.window**2, segments.shape[-2:]), cut)
    if boundary:
        half = cut.length // 2
        signal, weight = signal[..., half : signal.shape[-1] - half], weight[half : weight.shape[-1] - half]
    signal = signal / vnp.where(weight > 1e-10, weight, 1)
    times = vnp.arange(signal.shape[-1], dtype=dtype) / fs
    return times.astype(dtype), vnp.moveaxis(signal, -1, time_dim - (freq_dim < time_dim))


def _csd(
    function: str,
    x: Any,
    y: Any,
    fs: Any,
    window: Any,
    nperseg: int | None,
    noverlap: int | None,
    nfft: int | None,
    detrend: Any,
    onesided: bool,
    scaling: str,
    axis: int,
    average: str,
) -> tuple[Array, Array]:
    if scaling not in ("density", "spectrum"):
        raise ArgumentError(f"{function}: scaling must be 'density' or 'spectrum', got {scaling!r}")
    if average not in ("mean", "median"):
        raise ArgumentError(f"{function}: average must be 'mean' or 'median', got {average!r}")
    signals = promote_inexact(function, x) if y is None else promote_inexact(function, x, y)
    dim = axis_of(function, axis, signals[0].ndim)
    signals = [vnp.moveaxis(s, axis_of(function, axis, s.ndim), -1) for s in signals]
    longest = max(s.shape[-1] for s in signals)
    signals = [_extended(s, 0, longest - s.shape[-1]) for s in signals]
    if any(not s.size for s in signals):
        raise ShapeError(f"{function}: a signal must have elements, got shapes {[s.shape for s in signals]}")
    cut = _segments(function, signals[0], window, nperseg, noverlap, nfft)
    spectra = [_spectra(s, cut, detrend, onesided) for s in signals]
    power = spectra[0].conj() * spectra[-1]
    total = (cut.window**2).sum() * fs if scaling == "density" else cut.window.sum() ** 2
    if onesided and not is_complex(signals[0]):
        power = power * _both_signs(power.shape[-1], cut.nfft).astype(power.dtype)
    averaged = _averaged(power / total.astype(power.dtype), average)
    return _frequencies(cut, fs, signals[0], onesided), vnp.moveaxis(averaged, -1, dim)


def _segments(function: str, signal: Array, window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None) -> _Segments:
    """Read the arguments that say how a signal is cut."""
    size = signal.shape[-1]
    by_name = isinstance(window, (str, tuple))
    length = (
        min(256, size) if by_name and nperseg is None else as_integer(len(window) if nperseg is None else nperseg, f"{function}: nperseg")
    )
    if length > size and by_name:
        warnings.warn(f"{function}: nperseg={length} is longer than the signal, of {size} elements; using {size}", stacklevel=3)
        length = size
    if length > size:
        raise ShapeError(f"{function}: a window of {length} numbers is longer than the signal, of {size} elements")
    return _checked(function, window, length, noverlap, nfft, dtypes.real_dtype(dtypes.complex_dtype(signal.dtype)))


def _checked(function: str, window: Any, length: int, noverlap: int | None, nfft: int | None, dtype: np.dtype) -> _Segments:
    overlap = length // 2 if noverlap is None else as_integer(noverlap, f"{function}: noverlap")
    size = length if nfft is None else as_integer(nfft, f"{function}: nfft")
    if length < 1:
        raise ArgumentError(f"{function}: nperseg must be positive, got {length}")
    if not 0 <= overlap < length:
        raise ArgumentError(f"{function}: noverlap must be less than nperseg, {length}, and not negative, got {overlap}")
    if size < length:
        raise ArgumentError(f"{function}: nfft must be at least nperseg, {length}, got {size}")
    return _Segments(length, length - overlap, size, window_of(function, window, length, dtype))


def _extended(signal: Array, before: int, after: int, mode: str = "constant", **options: str) -> Array:
    if not before and not after:
        return signal
    return pad(signal, [(0, 0)] * (signal.ndim - 1) + [(before, after)], mode, **options)


def _indices(count: int, cut: _Segments) -> np.ndarray:
    """Return the indices of each segment's elements."""
    return (np.arange(count)[:, None] * cut.step + np.arange(cut.length)).astype(np.int32)


def _spectra(signal: Array, cut: _Segments, detrend: Any, onesided: bool) -> Array:
    """Return spectra of windowed segments; the last axes are segments, frequencies."""
    count = (signal.shape[-1] - cut.length) // cut.step + 1
    segments = vnp.take(signal, _indices(count, cut), -1)
    apply: Callable[[Array], Any] = detrend if callable(detrend) else lambda x: without_trend(x, type=detrend)
    windowed = (apply(segments) if detrend else segments) * cut.window
    return vnp.fft.rfft(windowed, cut.nfft) if onesided and not is_complex(windowed) else vnp.fft.fft(windowed, cut.nfft)


def _frequencies(cut: _Segments, fs: Any, signal: Array, onesided: bool) -> Array:
    numbers = np.fft.rfftfreq(cut.nfft) if onesided and not is_complex(signal) else np.fft.fftfreq(cut.nfft)
    return (vnp.asarray(numbers.astype(cut.window.dtype)) * fs).astype(cut.window.dtype)


def _both_signs(count: int, nfft: int) -> np.ndarray:
    """Return 2 for each frequency that stands for its negative, too, else 1."""
    factors = np.full(count, 2.0)
    factors[0] = 1
    if nfft % 2 == 0:
        factors[-1] = 1
    return factors


def _averaged(power: Array, average: str) -> Array:
    count = power.shape[-2]
    if average == "mean":
        return power.mean(-2)
    numbers = 2 * np.arange(1, (count - 1) // 2 + 1)
    bias = 1 + float(np.sum(1 / (numbers + 1) - 1 / numbers))  # of the median of squares, as SciPy corrects it
    medians = vnp.median(power.real, -2) + 1j * vnp.median(power.imag, -2)
    return (medians / bias).astype(power.dtype)


def _added_up(segments: Array, cut: _Segments) -> Array:
    """Add up overlapping segments to a signal."""
    count = segments.shape[-2]
    empty = vnp.zeros((*segments.shape[:-2], (count - 1) * cut.step + cut.length), segments.dtype)
    return empty.at[..., _indices(count, cut)].add(segments)
