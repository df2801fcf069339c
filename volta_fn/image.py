"""Resampling of images, and of arrays of any number of dimensions.

A pixel at index i covers the interval from i to i + 1. Each pixel of a result is a mean of input pixels, weighted by a *kernel* of their
distance from its centre, and the weights of all axes are applied one after the other, as products with small matrices.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import Shape, canonical_shape
from volta_fn.core.dimension import is_symbolic, max_dim
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.jit.fused import fused_by_results
from volta_fn.numpy.arguments import axes_of, operand, promote_inexact
from volta_fn.primitives.contraction import Precision, check_precision


class ResizeMethod(enum.Enum):
    """Methods of interpolation; functions take a method or its name.

    NEAREST ("nearest") takes the nearest pixel. LINEAR ("linear", "bilinear", "trilinear", "triangle") interpolates linearly. CUBIC
    ("cubic", "bicubic", "tricubic") convolves with the cubic kernel of Keys (1981) for a = -1/2. CUBIC_PYTORCH ("cubic-pytorch",
    "bicubic-pytorch") is PyTorch's bicubic: CUBIC with antialiasing, else a = -3/4 and edges repeated. LANCZOS3 and LANCZOS5
    ("lanczos3", "lanczos5") are windowed sinc functions of radius 3 and 5. AREA ("area") averages the pixels that the new one covers.

    >>> vf.image.ResizeMethod.from_string("bilinear")
    <ResizeMethod.LINEAR: 1>
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """Return the method of a name; raise `ArgumentError` for an unknown one."""
        if s not in _NAMES:
            raise ArgumentError(f"a resize method is one of {', '.join(map(repr, _NAMES))}, got {s!r}")
        return _NAMES[s]


_NAMES = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(["linear", "bilinear", "trilinear", "triangle"], ResizeMethod.LINEAR),
    "lanczos3": ResizeMethod.LANCZOS3,
    "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(["cubic", "bicubic", "tricubic"], ResizeMethod.CUBIC),
    **dict.fromkeys(["cubic-pytorch", "bicubic-pytorch"], ResizeMethod.CUBIC_PYTORCH),
    "area": ResizeMethod.AREA,
}


@fused_by_results
def resize(
    image: Any, shape: Sequence[int], method: str | ResizeMethod, antialias: bool = True, precision: Any = Precision.HIGHEST
) -> Array:
    """Resample an array to another shape.

    Args:
        image: an array; all axes are alike, so those of batches and channels keep their sizes in `shape`.
        shape: the result's shape, of as many axes as `image`.
        method: a `ResizeMethod` or its name.
        antialias: average over all pixels that a new one covers, where an axis shrinks.
        precision: as in `lax.dot_general`.

    The result has the dtype of `image` for NEAREST; the other methods convert integers to floats. Raises `ShapeError` for another number
    of axes and for images without elements, `ArgumentError` for an unknown method.

    >>> vf.image.resize(jnp.array([1.0, 3.0]), (4,), "linear")
    Array([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    value, new, how = _arguments("resize", image, shape, method, precision)
    axes = [d for d, (m, n) in enumerate(zip(value.shape, new, strict=True)) if m != n]
    if any(value.shape[d] == 0 for d in axes):
        raise ShapeError(f"resize: an image of shape {value.shape} has no pixels to resample to the shape {new}")
    if how is ResizeMethod.NEAREST:
        for d in axes:
            positions = vnp.arange(new[d]) if is_symbolic((new[d], value.shape[d])) else np.arange(new[d], dtype=np.int64)
            centres = (2 * positions + 1) * value.shape[d] // max_dim(2 * new[d], 1)
            value = vnp.take(value, centres.astype(np.int32), d)
        return value
    (value,) = promote_inexact("resize", value)
    dtype = np.float64 if value.dtype in (np.float64, np.complex128) else np.float32
    for d in axes:
        ratio: Any = new[d] / value.shape[d] if new[d] else 1.0
        scale = ratio.astype(dtype) if is_symbolic((new[d], value.shape[d])) else np.asarray(ratio, dtype)
        value = _resample(value, d, new[d], scale, np.zeros((), dtype), how, antialias)
    return value


@fused_by_results
def scale_and_translate(
    image: Any,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = Precision.HIGHEST,
) -> Array:
    """Scale and move an image: the point x becomes ``x * scale + translation``.

    Args:
        image: an array.
        shape: the result's shape, of as many axes as `image`.
        spatial_dims: the axes that are resampled; the others keep their size.
        scale, translation: a number for each of them, in pixels for `translation`. They have derivatives.
        method: a `ResizeMethod` other than NEAREST, or its name.
        antialias: average over all pixels that a new one covers, where an axis shrinks.
        precision: as in `lax.dot_general`.

    Pixels from outside of the image are 0 (CUBIC_PYTORCH without antialiasing repeats edges). The result is of floating or complex dtype.
    Raises `ShapeError` for shapes that do not fit, `ArgumentError` for an unknown method and NEAREST.

    >>> vf.image.scale_and_translate(jnp.array([1.0, 2.0, 3.0]), (3,), (0,), jnp.ones(1), jnp.ones(1), "linear")
    Array([0., 1., 2.], dtype=float32)
    """
    value, new, how = _arguments("scale_and_translate", image, shape, method, precision)
    if how is ResizeMethod.NEAREST:
        raise ArgumentError("scale_and_translate: the method NEAREST exists for resize only; use LINEAR")
    axes = axes_of("scale_and_translate", tuple(spatial_dims), value.ndim)
    (value,) = promote_inexact("scale_and_translate", value)
    scales, moves = [_numbers(x, value.dtype) for x in (scale, translation)]
    if not scales.shape == moves.shape == (len(axes),):
        raise ShapeError(
            f"scale_and_translate: scale and translation need {len(axes)} numbers, got shapes {scales.shape} and {moves.shape}"
        )
    fixed_axes = [d for d in range(value.ndim) if d not in axes]
    if any(value.shape[d] != new[d] for d in fixed_axes):
        raise ShapeError(f"scale_and_translate: only the axes {axes} change their size, but {value.shape} should become {new}")
    for i, d in enumerate(axes):
        value = _resample(value, d, new[d], scales[i], moves[i], how, antialias)
    return value


def _numbers(numbers: Any, dtype: np.dtype) -> Array:
    """Return numbers as floats: those in lists as exact as the image."""
    wide = dtype in (np.float64, np.complex128)
    array = numbers if hasattr(numbers, "dtype") else vnp.asarray(numbers, dtype=np.float64 if wide else np.float32)
    return promote_inexact("scale_and_translate", array)[0]


def _arguments(
    function: str, image: Any, shape: Sequence[int], method: str | ResizeMethod, precision: Any
) -> tuple[Array, Shape, ResizeMethod]:
    value, new = operand(function, "image", image), canonical_shape(shape)
    if len(new) != value.ndim:
        raise ShapeError(f"{function}: shape must have as many axes as the image, got {new} for {value.shape}")
    check_precision(function, precision)
    if not isinstance(method, (str, ResizeMethod)):
        raise ArgumentTypeError(f"{function}: method must be a ResizeMethod or its name, got {method!r}")
    return value, new, ResizeMethod.from_string(method) if isinstance(method, str) else method


def _resample(value: Array, axis: int, size: int, scale: Any, translation: Any, method: ResizeMethod, antialias: bool) -> Array:
    weights = _weights(value.shape[axis], size, scale, translation, method, antialias).astype(value.dtype)
    return vnp.moveaxis(vnp.tensordot(value, weights, ((axis,), (0,))), -1, axis)


def _weights(count: int, size: int, scale: Any, translation: Any, method: ResizeMethod, antialias: bool) -> Array:
    """Return the weight of each of `count` pixels in each of the `size` new ones."""
    repeats_edges = method is ResizeMethod.CUBIC_PYTORCH and not antialias
    dtype = vnp.asarray(scale).dtype
    if method is ResizeMethod.AREA:
        weights = _overlaps(count, size, scale, translation, dtype)
    else:
        radius, kernel = _KERNELS[ResizeMethod.CUBIC if method is ResizeMethod.CUBIC_PYTORCH and antialias else method]
        margin = radius if repeats_edges else 0
        pixels = vnp.arange(-margin, count + margin, dtype=dtype)
        width = vnp.maximum(1 / scale, 1) if antialias else 1
        weights = kernel(abs(_centres(size, scale, translation, dtype) - pixels[:, None]) / width)
        weights = _with_edges(weights, margin) if repeats_edges else weights
    total = weights.sum(0, keepdims=True)
    is_covered = abs(total) > 1000 * float(dtypes.finfo(np.float32).eps)
    weights = vnp.where(is_covered, weights / vnp.where(total == 0, 1, total), 0)
    if repeats_edges:
        return weights
    centres = _centres(size, scale, translation, dtype)
    return vnp.where((centres >= -0.5) & (centres <= count - 0.5), weights, 0)


def _centres(size: int, scale: Any, translation: Any, dtype: Any) -> Array:
    """Return the input's coordinate, less 1/2, of each new pixel's centre."""
    return (vnp.arange(size, dtype=dtype) + 0.5 - translation) / scale - 0.5


def _overlaps(count: int, size: int, scale: Any, translation: Any, dtype: Any) -> Array:
    """Return the length of each pixel's intersection with each new one."""
    start = (vnp.arange(size, dtype=dtype) - translation) / scale
    pixels = vnp.arange(count, dtype=dtype)[:, None]
    return vnp.maximum(vnp.minimum(start + 1 / scale, pixels + 1) - vnp.maximum(start, pixels), 0)


def _with_edges(weights: Array, margin: int) -> Array:
    """Add the weights of `margin` pixels beyond each edge to those at the edge."""
    inside = weights[margin : weights.shape[0] - margin]
    return inside.at[0].add(weights[:margin].sum(0)).at[-1].add(weights[weights.shape[0] - margin :].sum(0))


def _cubic(a: float) -> Callable[[Array], Array]:
    """Return the cubic convolution kernel (Keys, 1981) whose slope at 1 is `a`."""

    def kernel(x: Array) -> Array:
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return vnp.where(x >= 2, 0, vnp.where(x >= 1, far, near))

    return kernel


def _lanczos(radius: int) -> Callable[[Array], Array]:
    return lambda x: vnp.where(x > radius, 0, vnp.sinc(x) * vnp.sinc(x / radius))


class _Kernel(NamedTuple):
    #: The distance beyond which the weight is 0, and the weight of a distance.
    radius: int
    weight: Callable[[Array], Array]


_KERNELS = {
    ResizeMethod.LINEAR: _Kernel(1, lambda x: vnp.maximum(1 - x, 0)),
    ResizeMethod.LANCZOS3: _Kernel(3, _lanczos(3)),
    ResizeMethod.LANCZOS5: _Kernel(5, _lanczos(5)),
    ResizeMethod.CUBIC: _Kernel(2, _cubic(-0.5)),
    ResizeMethod.CUBIC_PYTORCH: _Kernel(2, _cubic(-0.75)),
}
