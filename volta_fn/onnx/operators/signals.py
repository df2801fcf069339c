"""Operators of signals: resampled images and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import nn, vision
from volta_fn import numpy as vnp
from volta_fn.onnx.nodes import Node, as_array, dtype_of, operator

# Images at other positions: Resize, GridSample, RoiAlign and their like.


@operator("Resize", "Upsample")
def resize(node: Node, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """Resize axes, each by a matrix of the weights of its positions."""
    x = as_array(x)
    if node.op == "Upsample" or node.opset < 11:
        roi, scales = None, roi
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    factors = node.get("scales") if scales is None or scales.size == 0 else node.host(scales, "scales").tolist()
    new_sizes = None if sizes is None or sizes.size == 0 else node.ints(sizes, "sizes")
    factors, lengths = _lengths(node, [x.shape[a] for a in axes], factors, new_sizes)
    region = None if roi is None or roi.size == 0 else node.host(roi, "roi").reshape(2, -1)
    legacy = node.op == "Upsample" or node.opset < 11
    dtype = x.dtype
    mode = node.get("mode", "nearest")
    inside = None
    for i, axis in enumerate(axes):
        crop = node.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        if x.shape[axis] == lengths[i] and factors[i] == 1 and not crop:
            continue
        span = None if region is None else (float(region[0][i]), float(region[1][i]))
        positions = _positions(node, x.shape[axis], lengths[i], factors[i], span, legacy)
        if crop:
            valid = (positions >= 0) & (positions <= x.shape[axis] - 1)
            shape = [-1 if k == axis else 1 for k in range(x.ndim)]
            inside = valid.reshape(shape) if inside is None else inside & valid.reshape(shape)
        if mode == "nearest":
            x = vnp.take(x, _nearest(node, positions, x.shape[axis], legacy), axis)
        else:
            weights = _weights(node, mode, positions, x.shape[axis], factors[i])
            weights = weights.astype(dtype if dtype == np.float64 else np.float32)
            x = vnp.moveaxis(vnp.tensordot(x, vnp.asarray(weights), ((axis,), (1,))), -1, axis)
    if inside is not None:
        x = vnp.where(inside, x, node.get("extrapolation_value", 0.0))
    if np.issubdtype(dtype, np.integer) and mode != "nearest":
        return vnp.clip(vnp.round(x), np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
    return x.astype(dtype)


def _lengths(node: Node, shape: Sequence[int], factors: Any, new_sizes: list[int] | None) -> tuple[list[float], list[int]]:
    """Return each axis's scale and new length."""
    if new_sizes is None:
        return [float(f) for f in factors], [math.floor(n * float(np.float32(f))) for n, f in zip(shape, factors, strict=True)]
    scales = [w / n for w, n in zip(new_sizes, shape, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, new_sizes
    scale = (min if policy == "not_larger" else max)(scales)
    return [scale] * len(shape), [math.floor(scale * n + 0.5) for n in shape]


def _positions(node: Node, size: int, length: int, scale: float, span: tuple[float, float] | None, legacy: bool) -> np.ndarray:
    """Return the position of each new element on the old axis."""
    new = np.arange(length, dtype=np.float64)
    form = "asymmetric" if legacy else node.get("coordinate_transformation_mode", "half_pixel")
    if form == "align_corners":
        return new * (size - 1) / (scale * size - 1) if length > 1 else np.zeros(length)  # the length before it was rounded
    if form == "asymmetric":
        return new / scale
    if form == "pytorch_half_pixel":
        return (new + 0.5) / scale - 0.5 if length > 1 else np.zeros(length)
    if form == "tf_half_pixel_for_nn":
        return (new + 0.5) / scale
    if form == "tf_crop_and_resize":
        begin, end = span or (0.0, 1.0)
        if length > 1:
            return begin * (size - 1) + new * (end - begin) * (size - 1) / (length - 1)
        return np.full(length, 0.5 * (begin + end) * (size - 1))
    if form == "half_pixel_symmetric":
        adjusted = length / (scale * size)
        centre = size / 2
        return centre * (1 - adjusted) + (new + 0.5) / scale - 0.5
    return (new + 0.5) / scale - 0.5


def _nearest(node: Node, positions: np.ndarray, size: int, legacy: bool) -> np.ndarray:
    mode = "floor" if legacy else node.get("nearest_mode", "round_prefer_floor")
    functions: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5),
        "round_prefer_ceil": lambda p: np.floor(p + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    return np.clip(functions[mode](positions), 0, size - 1).astype(np.int64)


def _weights(node: Node, mode: str, positions: np.ndarray, size: int, scale: float) -> np.ndarray:
    """Return the matrix whose rows have the weights of the old elements in a new one."""
    antialias = bool(node.get("antialias", 0)) and scale < 1
    stretch = 1 / scale if antialias else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    a = node.get("cubic_coeff_a", -0.75)
    matrix = np.zeros((len(positions), size))
    for row, centre in enumerate(positions):
        low = math.floor(centre) - math.ceil(reach) + 1
        taps = np.arange(low, math.floor(centre) + math.ceil(reach) + 1)
        values = _kernel(mode, (taps - centre) / stretch, a)
        outside = (taps < 0) | (taps >= size)
        if node.get("exclude_outside", 0):
            values = np.where(outside, 0, values)
        values = values / values.sum() if antialias or node.get("exclude_outside", 0) else values
        np.add.at(matrix[row], np.clip(taps, 0, size - 1), values)
    return matrix


def _kernel(mode: str, distance: np.ndarray, a: float) -> np.ndarray:
    x = abs(distance)
    if mode == "linear":
        return np.maximum(0, 1 - x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@operator("GridSample")
def grid_sample(node: Node, x: Any, grid: Any) -> Any:
    """Interpolate images at given positions."""
    modes = {"linear": "bilinear", "bilinear": "bilinear", "cubic": "bicubic", "bicubic": "bicubic", "nearest": "nearest"}
    return nn.grid_sample(
        as_array(x),
        as_array(grid),
        mode=modes[node.get("mode", "linear")],
        padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )


@operator("AffineGrid")
def affine_grid(node: Node, theta: Any, size: Any) -> Any:
    """Return the sampling positions of affine maps."""
    return nn.affine_grid(as_array(theta), node.ints(size, "size"), align_corners=bool(node.get("align_corners", 0)))


@operator("CenterCropPad")
def center_crop_pad(node: Node, x: Any, shape: Any) -> Any:
    """Crop or pad axes to sizes, around the middle."""
    x, sizes = as_array(x), node.ints(shape, "shape")
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    for axis, size in zip(axes, sizes, strict=True):
        have = x.shape[axis]
        if have > size:
            low = (have - size) // 2
            x = x[tuple([slice(low, low + size) if i == axis else slice(None) for i in range(x.ndim)])]
        elif have < size:
            low = (size - have) // 2
            x = vnp.pad(x, [(low, size - have - low) if i == axis else (0, 0) for i in range(x.ndim)])
    return x


@operator("RoiAlign")
def roi_align(node: Node, x: Any, rois: Any, batch_indices: Any) -> Any:
    """Pool regions of images, at positions between pixels."""
    x, boxes = as_array(x), as_array(rois)
    height, width = node.get("output_height", 1), node.get("output_width", 1)
    half = node.opset >= 16 and node.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale, ratio = node.get("spatial_scale", 1.0), node.get("sampling_ratio", 0)
    if node.get("mode", "avg") == "avg":
        numbered = vnp.concatenate([as_array(batch_indices).astype(boxes.dtype)[:, None], boxes], 1)
        return vision.ops.roi_align(x, numbered, (height, width), scale, ratio, half)
    corners = boxes * scale - (0.5 if half else 0.0)
    extent = corners[:, 2:] - corners[:, :2]
    extent = extent if half else vnp.maximum(extent, 1.0)
    images = vnp.take(x, as_array(batch_indices), 0)
    counts = np.full((2, len(boxes)), ratio) if ratio else _sampling(node, extent, (width, height))
    xs, across = _sample_positions(corners[:, 0], extent[:, 0], width, counts[0])
    ys, down = _sample_positions(corners[:, 1], extent[:, 1], height, counts[1])
    values = _bilinear(images, ys, xs).reshape(*images.shape[:2], height, down.shape[1], width, across.shape[1])
    is_sample = down[:, None, None, :, None, None] & across[:, None, None, None, None, :]
    largest = vnp.max(vnp.where(is_sample, values, -np.inf), (3, 5), initial=-np.inf)
    return vnp.where(is_sample.any((3, 5)), largest, 0).astype(x.dtype)


def _sampling(node: Node, extent: Any, cells: tuple[int, int]) -> np.ndarray:
    """Return the samples along each axis of the cells of each region, by its size."""
    sizes = node.host(extent, "rois")
    return np.stack([np.maximum(np.ceil(sizes[:, i] / n), 0).astype(int) for i, n in enumerate(cells)])


def _sample_positions(start: Any, extent: Any, cells: int, counts: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return positions of samples in cells, and which of them each region has.

    There are as many in each cell as the largest region has.
    """
    numbers = np.arange(counts.max(initial=0))
    shares = (numbers + 0.5) / np.maximum(counts, 1)[:, None]
    steps = (np.arange(cells)[:, None] + shares[:, None]).reshape(len(counts), -1) / cells
    return start[:, None] + extent[:, None] * vnp.asarray(steps.astype(np.float32)), numbers < counts[:, None]


def _bilinear(images: Any, ys: Any, xs: Any) -> Any:
    """Interpolate (N, C, H, W) at the products of positions (N, P) and (N, Q)."""
    rows, columns = [_linear(p, n) for p, n in ((ys, images.shape[2]), (xs, images.shape[3]))]
    return vnp.einsum("nchw,nph,nqw->ncpq", images, rows, columns)


def _linear(positions: Any, size: int) -> Any:
    """Return the weights of elements at positions; those far outside have none."""
    inside = (positions >= -1) & (positions <= size)
    at = vnp.clip(positions, 0, size - 1)
    distance = abs(at[..., None] - vnp.arange(size))
    return vnp.maximum(0, 1 - distance) * inside[..., None]


# Fourier transforms, windows and mel weights.


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
    spectrum = (vnp.fft.ifft if inverse else vnp.fft.fft)(values, count, axis=along)
    if one_sided:
        spectrum = spectrum[tuple([slice(count // 2 + 1) if i == along else slice(None) for i in range(spectrum.ndim)])]
    return vnp.stack([spectrum.real, spectrum.imag], -1).astype(x.dtype)


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
    spectra = vnp.fft.fft(frames, axis=-1)
    if node.get("onesided", 1):
        spectra = spectra[..., : size // 2 + 1]
    return vnp.stack([spectra.real, spectra.imag], -1).astype(x.dtype)


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
    weights = np.zeros((size // 2 + 1, count))
    for i in range(count):
        begin, centre, end = positions[i : i + 3]
        if centre == begin:
            weights[centre, i] = 1
        else:
            weights[begin : centre + 1, i] = (np.arange(begin, centre + 1) - begin) / (centre - begin)
        if end > centre:
            weights[centre:end, i] = (end - np.arange(centre, end)) / (end - centre)
    return weights.astype(dtype_of(node.get("output_datatype", 1)))
