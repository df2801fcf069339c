"""Fourier transforms, windows and mel weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.onnx.operators.registry import Node, as_array, operator
from volta_fn.onnx.tensors import dtype_of


@operator("DFT")
def dft(node: Node, x: Any, length: Any = None, axis: Any = None) -> Any:
    """Transform an axis; complex numbers are pairs along the last axis."""
    x = as_array(x)
    along = node.get("axis", 1) if node.opset < 20 else -2 if axis is None else node.ints(axis, "axis")[0]
    along %= x.ndim
    inverse, one_sided = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    values = _as_complex(x)
    if inverse and one_sided and length is None:
        return vnp.fft.irfft(values, 2 * (values.shape[along] - 1), axis=along)[..., None].astype(x.dtype)
    count = values.shape[along] if length is None else node.ints(length, "dft_length")[0]
    if inverse and one_sided:
        return vnp.fft.irfft(values, count, axis=along)[..., None].astype(x.dtype)
    found = (vnp.fft.ifft if inverse else vnp.fft.fft)(values, count, axis=along)
    if one_sided:
        found = found[tuple([slice(count // 2 + 1) if i == along else slice(None) for i in range(found.ndim)])]
    return vnp.stack([found.real, found.imag], -1).astype(x.dtype)


def _as_complex(x: Any) -> Any:
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    if x.shape[-1] == 1:
        return wide[..., 0] + 0j
    return wide[..., 0] + 1j * wide[..., 1]


@operator("STFT")
def stft(node: Node, x: Any, step: Any, window: Any = None, length: Any = None) -> Any:
    """Transform overlapping frames."""
    x = as_array(x)
    hop = node.ints(step, "frame_step")[0]
    size = node.ints(length, "frame_length")[0] if length is not None else window.shape[0]
    signal = _as_complex(x if x.ndim == 3 else x[..., None])
    starts = np.arange(0, signal.shape[1] - size + 1, hop)
    frames = signal[:, starts[:, None] + np.arange(size)]
    if window is not None:
        frames = frames * as_array(window)
    found = vnp.fft.fft(frames, axis=-1)
    if node.get("onesided", 1):
        found = found[..., : size // 2 + 1]
    return vnp.stack([found.real, found.imag], -1).astype(x.dtype)


@operator("BlackmanWindow", "HammingWindow", "HannWindow")
def cosine_window(node: Node, size: Any) -> Any:
    """Return a window that is a sum of cosines."""
    count = node.ints(size, "size")[0]
    angles = 2 * math.pi * np.arange(count) / (count if node.get("periodic", 1) else count - 1)
    coefficients = {"BlackmanWindow": (0.42, 0.5, 0.08), "HammingWindow": (25 / 46, 21 / 46, 0.0), "HannWindow": (0.5, 0.5, 0.0)}
    a, b, c = coefficients[node.op]
    return (a - b * np.cos(angles) + c * np.cos(2 * angles)).astype(dtype_of(node.get("output_datatype", 1)))


@operator("MelWeightMatrix")
def mel_weights(node: Node, bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Any:
    """Return the triangular weights of mel bins for frequencies."""
    count, size, sampling = node.ints(bins, "num_mel_bins")[0], node.ints(length, "dft_length")[0], node.ints(rate, "sample_rate")[0]
    edges = [2595 * math.log10(1 + float(node.host(f, "a frequency").reshape(())) / 700) for f in (low, high)]
    mels = edges[0] + np.arange(count + 2) * (edges[1] - edges[0]) / (count + 2)
    positions = ((size + 1) * (700 * (10 ** (mels / 2595) - 1)) // sampling).astype(int)
    found = np.zeros((size // 2 + 1, count))
    for i in range(count):
        begin, centre, end = positions[i : i + 3]
        if centre == begin:
            found[centre, i] = 1
        else:
            found[begin : centre + 1, i] = (np.arange(begin, centre + 1) - begin) / (centre - begin)
        if end > centre:
            found[centre:end, i] = (end - np.arange(centre, end)) / (end - centre)
    return found.astype(dtype_of(node.get("output_datatype", 1)))
