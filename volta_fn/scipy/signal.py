"""Convolution, detrending and spectra of signals: names of `scipy.signal`.

Convolutions are direct or by Fourier transforms, spectra those of windowed segments of a signal. The examples use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> vf.scipy.signal.convolve(vf.numpy.array([1.0, 2.0, 3.0]), vf.numpy.array([1.0, -1.0]))
Array([ 1.,  1.,  1., -3.], dtype=float32)
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, lazy_imports
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import Shape, as_integer, check_option
from volta_fn.errors import ArgumentError, MissingDependencyError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import axes_of, axis_of, converted, is_complex, no_out, promote_inexact, promote_numeric
from volta_fn.numpy.joining import pad
from volta_fn.primitives.data_movement.movement import broadcast_to
from volta_fn.settings import current as settings

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "csd", "detrend", "fftconvolve", "istft", "stft", "welch"]


def window_of(function: str, window: Any, length: int, dtype: np.dtype) -> Array:
    """Return a window of a length: by its name, as SciPy's `get_window`, or as given."""
    if isinstance(window, str) and window == "hann":
        return vnp.asarray((np.sin(np.pi * np.arange(length) / length) ** 2 if length > 1 else np.ones(length)).astype(dtype))
    if isinstance(window, (str, tuple)):
        if not lazy_imports.is_installed("scipy"):
            raise MissingDependencyError(f"{function}: the window {window!r} needs SciPy: pip install scipy; 'hann' does not")
        return vnp.asarray(lazy_imports.load("scipy.signal").get_window(window, length).astype(dtype))
    samples = vnp.asarray(window)
    if samples.shape != (length,):
        raise ShapeError(f"{function}: a window of {length} numbers is needed, as nperseg says, got shape {samples.shape}")
    return samples.astype(dtype)


# Convolution and correlation of arrays, directly or by Fourier transforms.

_MODES = ("full", "same", "valid")
#: By boundary of SciPy, the mode of `numpy.pad`.
_CONVOLUTION_BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


@fused
def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """Convolve two arrays of any number of dimensions.

    Args:
        in1, in2: arrays of as many dimensions each.
        mode: "full" for all sums with one product or more, "same" for the middle of these, of the shape of `in1`, "valid" for those
            where the smaller array lies inside of the larger one.
        method: "direct" adds products, "fft" multiplies spectra (`fftconvolve`), which rounds more and is faster for long arrays. "auto"
            is "direct", as in JAX.
        precision: as in `lax.dot_general`.

    Integers stay integers where the method is direct, but become floats under `volta_fn.jax`; booleans become int32. Raises `ShapeError`
    for arrays of several ranks, without elements, or of which neither contains the other in the mode "valid", `ArgumentError` for another
    mode or method.

    >>> vf.scipy.signal.convolve(jnp.array([1, 2, 3]), jnp.array([0, 1, 1]), mode="same")
    Array([1, 3, 5], dtype=int32)
    """
    return _convolved("convolve", in1, in2, mode, method, precision)


@fused
def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Array:
    """Return the cross-correlation: sums of in1[k + i] · conj(in2[i]).

    Arguments and errors are those of `convolve`; element ``in2.shape - 1`` of the full result is that of k = 0.

    >>> vf.scipy.signal.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]))
    Array([1., 2., 3., 0.], dtype=float32)
    """
    first, second = _operands("correlate", in1, in2)
    return _convolved("correlate", first, _reversed(second), mode, method, precision)


@fused
def convolve2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, precision: Any = None) -> Array:
    """Convolve two matrices.

    Args:
        in1, in2: matrices.
        mode, precision: as in `convolve`.
        boundary: what is around `in1`: "fill" is `fillvalue`, "wrap" the matrix again, "symm" its mirror image.
        fillvalue: a number.

    Raises what `convolve` does, `ShapeError` unless both are matrices, and `ArgumentError` for another boundary.

    >>> vf.scipy.signal.convolve2d(jnp.ones((2, 2)), jnp.ones((1, 2)), boundary="wrap")
    Array([[2., 2., 2.],
           [2., 2., 2.]], dtype=float32)
    """
    first, second = _matrices("convolve2d", in1, in2)
    return _convolved_2d("convolve2d", first, second, mode, boundary, fillvalue, precision)


@fused
def correlate2d(in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0, precision: Any = None) -> Array:
    """Return the cross-correlation of two matrices, as `correlate` does for arrays.

    Arguments and errors are those of `convolve2d`. The mode "same" begins, as in SciPy, at the element of k = 0 for matrices of odd size,
    else one before the middle.

    >>> vf.scipy.signal.correlate2d(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[1.0, 1.0]]), mode="valid")
    Array([[3.],
           [7.]], dtype=float32)
    """
    first, second = _matrices("correlate2d", in1, in2)
    if mode == "same":
        mirrored = _convolved_2d("correlate2d", vnp.flip(first), second.conj(), mode, boundary, fillvalue, precision)
        return vnp.flip(mirrored)
    return _convolved_2d("correlate2d", first, _reversed(second), mode, boundary, fillvalue, precision)


@fused
def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: int | Sequence[int] | None = None) -> Array:
    """Convolve two arrays by the product of their Fourier transforms.

    Args:
        in1, in2: arrays of as many dimensions each; integers become floats.
        mode: as in `convolve`.
        axes: the axes to convolve along (default: all); the others broadcast.

    Raises what `convolve` does.

    >>> vf.scipy.signal.fftconvolve(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])).round(4)
    Array([1., 3., 2.], dtype=float32)
    """
    first, second = promote_inexact("fftconvolve", in1, in2)
    _check("fftconvolve", first, second, mode)
    dims = axes_of("fftconvolve", axes if axes is None or isinstance(axes, int) else tuple(axes), first.ndim)
    shapes = [tuple([x.shape[d] for d in dims]) for x in (first, second)]
    if mode == "valid":
        _contains("fftconvolve", *shapes)
    sizes = [_fast_size(m + n - 1) for m, n in zip(*shapes, strict=True)]
    if not dims:
        return first * second
    if is_complex(first):
        product = vnp.fft.fftn(first, sizes, dims) * vnp.fft.fftn(second, sizes, dims)
        full = vnp.fft.ifftn(product, sizes, dims)
    else:
        product = vnp.fft.rfftn(first, sizes, dims) * vnp.fft.rfftn(second, sizes, dims)
        full = vnp.fft.irfftn(product, sizes, dims)
    for d, m, n in zip(dims, *shapes, strict=True):
        start, size = _range(mode, m, n)
        full = lax.slice_in_dim(full, start, start + size, axis=d)
    return full.astype(first.dtype)


def _fast_size(least: int) -> int:
    """Return the next number without prime factors above 5: transforms are fast."""
    powers = (3**i * 5**j for i in range(least.bit_length()) for j in range(least.bit_length()))
    return min(power << max(-(-least // power) - 1, 0).bit_length() for power in powers if power < 2 * least)


def _range(mode: str, m: int, n: int) -> tuple[int, int]:
    """Return the first element, and the number of them, of the full convolution."""
    if mode == "full":
        return 0, m + n - 1
    return ((n - 1) // 2, m) if mode == "same" else (min(m, n) - 1, abs(m - n) + 1)


def _reversed(x: Array) -> Array:
    return vnp.flip(x).conj()


def _check(function: str, first: Array, second: Array, mode: str) -> None:
    check_option(mode, f"{function}: mode", _MODES)
    if first.ndim != second.ndim:
        raise ShapeError(f"{function}: in1 and in2 must have as many dimensions each, got shapes {first.shape} and {second.shape}")
    if not first.size or not second.size:
        raise ShapeError(f"{function}: in1 and in2 must have elements, got shapes {first.shape} and {second.shape}")


def _contains(function: str, first: Shape, second: Shape) -> bool:
    """Return whether the first array contains the second, or raise if neither does."""
    if all(m >= n for m, n in zip(first, second, strict=True)):
        return True
    if all(m <= n for m, n in zip(first, second, strict=True)):
        return False
    raise ShapeError(f"{function}: in the mode 'valid' one array must contain the other, got shapes {first} and {second}")


def _operands(function: str, in1: Any, in2: Any) -> list[Array]:
    """Promote two arrays; JAX convolves integers as floats."""
    return promote_inexact(function, in1, in2) if settings.permissive else promote_numeric(function, in1, in2)


def _convolved(function: str, in1: Any, in2: Any, mode: str, method: str, precision: Any) -> Array:
    check_option(method, f"{function}: method", ("auto", "direct", "fft"))
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    first, second = _operands(function, in1, in2)
    _check(function, first, second, mode)
    if mode == "valid" and not _contains(function, first.shape, second.shape):
        first, second = second, first
    return _direct(first, second, [_range(mode, m, n) for m, n in zip(first.shape, second.shape, strict=True)], precision)


def _direct(first: Array, second: Array, ranges: Sequence[tuple[int, int]], precision: Any) -> Array:
    """Return a range of the full convolution along each axis."""
    if not first.ndim:
        return first * second
    padding = []
    for (start, size), m, n in zip(ranges, first.shape, second.shape, strict=True):
        low = n - 1 - start
        padding.append((low, size + n - 1 - m - low))
    ones = (1,) * first.ndim
    out = lax.conv_general_dilated(first[None, None], vnp.flip(second)[None, None], ones, padding, precision=precision)
    return lax.squeeze(out, (0, 1))


def _matrices(function: str, in1: Any, in2: Any) -> list[Array]:
    both = _operands(function, in1, in2)
    if any(x.ndim != 2 for x in both):
        raise ShapeError(f"{function}: in1 and in2 must be matrices, got shapes {both[0].shape} and {both[1].shape}")
    return both


def _convolved_2d(function: str, first: Array, second: Array, mode: str, boundary: str, fillvalue: Any, precision: Any) -> Array:
    check_option(boundary, f"{function}: boundary", _CONVOLUTION_BOUNDARIES)
    if mode == "valid" or (boundary == "fill" and isinstance(fillvalue, (int, float)) and not fillvalue):
        return _convolved(function, first, second, mode, "direct", precision)
    _check(function, first, second, mode)
    widths = [(n - 1, n - 1) for n in second.shape]
    pad: Callable[..., Array] = vnp.pad
    options = {"constant_values": converted(function, fillvalue, first.dtype)} if boundary == "fill" else {}
    around = pad(first, widths, _CONVOLUTION_BOUNDARIES[boundary], **options)
    ranges = [_range(mode, m, n) for m, n in zip(first.shape, second.shape, strict=True)]
    return _direct(around, second, [(start + n - 1, size) for (start, size), n in zip(ranges, second.shape, strict=True)], precision)


# Spectra of a signal's segments: power densities, and short-time transforms.

#: By SciPy's name of a boundary, the arguments of `numpy.pad`.
_BOUNDARIES: dict[str, dict[str, str]] = {
    "zeros": {"mode": "constant"},
    "constant": {"mode": "edge"},
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}


class _Segments(NamedTuple):
    """The division of a signal into segments, and the length of their transforms."""

    length: int
    step: int
    nfft: int
    window: Array


@fused
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


@fused
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


@fused
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


@fused
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
    check_option(scaling, f"{function}: scaling", ("density", "spectrum"))
    check_option(average, f"{function}: average", ("mean", "median"))
    signals = promote_inexact(function, x) if y is None else promote_inexact(function, x, y)
    if any(not s.size for s in signals):
        raise ShapeError(f"{function}: a signal must have elements, got shapes {[s.shape for s in signals]}")
    signals = [vnp.moveaxis(s, axis_of(function, axis, s.ndim), -1) for s in signals]
    longest = max(s.shape[-1] for s in signals)
    signals = [_extended(s, 0, longest - s.shape[-1]) for s in signals]
    cut = _segments(function, signals[0], window, nperseg, noverlap, nfft)
    spectra = [_spectra(s, cut, detrend, onesided) for s in signals]
    power = spectra[0].conj() * spectra[-1]
    total = (cut.window**2).sum() * fs if scaling == "density" else cut.window.sum() ** 2
    if onesided and not is_complex(signals[0]):
        factors = np.full(power.shape[-1], 2.0)
        factors[0] = 1
        if cut.nfft % 2 == 0:
            factors[-1] = 1
        power = power * factors.astype(power.dtype)
    averaged = _averaged(power / total.astype(power.dtype), average)
    return _frequencies(cut, fs, signals[0], onesided), vnp.moveaxis(averaged, -1, axis)


def _segments(function: str, signal: Array, window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None) -> _Segments:
    """Return the division of a signal that the arguments ask for."""
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


def _spectra(signal: Array, cut: _Segments, trend: Any, onesided: bool) -> Array:
    """Return spectra of windowed segments; the last axes are segments, frequencies."""
    count = (signal.shape[-1] - cut.length) // cut.step + 1
    segments = vnp.take(signal, _indices(count, cut), -1)
    apply: Callable[[Array], Any] = trend if callable(trend) else lambda x: detrend(x, type=trend)
    windowed = (apply(segments) if trend else segments) * cut.window
    return vnp.fft.rfft(windowed, cut.nfft) if onesided and not is_complex(windowed) else vnp.fft.fft(windowed, cut.nfft)


def _frequencies(cut: _Segments, fs: Any, signal: Array, onesided: bool) -> Array:
    numbers = np.fft.rfftfreq(cut.nfft) if onesided and not is_complex(signal) else np.fft.fftfreq(cut.nfft)
    return (vnp.asarray(numbers.astype(cut.window.dtype)) * fs).astype(cut.window.dtype)


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


# Detrending: signals less their mean, or less a line fitted to them.


@fused
def detrend(data: Any, axis: int = -1, type: str = "linear", bp: int | Sequence[int] = 0, overwrite_data: None = None) -> Array:
    """Subtract from a signal the line of least squares, or its mean.

    Args:
        data: numbers; integers become floats.
        axis: the axis along which the signal runs.
        type: "linear" for a line, "constant" for the mean.
        bp: break points: a line is fitted to each segment between them.
        overwrite_data: None; arrays are immutable.

    Raises `ArgumentError` for another type, and for break points outside of the signal; `ShapeError` if there is no such axis.

    >>> vf.scipy.signal.detrend(jnp.array([1.0, 2.0, 3.0, 5.0])).round(2)
    Array([ 0.2, -0.1, -0.4,  0.3], dtype=float32)
    """
    no_out("detrend", overwrite_data)
    (value,) = promote_inexact("detrend", data)
    dim = axis_of("detrend", axis, value.ndim)
    if type in ("constant", "c"):
        return value - value.mean(dim, keepdims=True)
    if type not in ("linear", "l"):
        raise ArgumentError(f"detrend: type must be 'linear' or 'constant', got {type!r}")
    signal = vnp.moveaxis(value, dim, -1)
    count = signal.shape[-1]
    breaks = np.unique([0, *np.ravel(bp), count]).astype(int)
    if breaks[0] < 0 or breaks[-1] > count:
        raise ArgumentError(f"detrend: the break points must lie between 0 and {count}, the signal's length, got {bp!r}")
    segments = [_residual(signal[..., start:end]) for start, end in itertools.pairwise(breaks)]
    return vnp.moveaxis(vnp.concatenate(segments, -1) if segments else signal, -1, dim)


def _residual(signal: Array) -> Array:
    """Subtract the projection on the space of lines along the last axis."""
    count = signal.shape[-1]
    ramps = np.stack([np.ones(count), np.arange(count) - (count - 1) / 2], 1)
    norms = np.linalg.norm(ramps, axis=0)
    basis = (ramps / np.where(norms == 0, 1, norms)).astype(signal.dtype)
    return signal - (signal @ basis) @ basis.T
