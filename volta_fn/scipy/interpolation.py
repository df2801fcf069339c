"""Interpolation: on grids, at coordinates, and images of other sizes.

`scipy.interpolate`, `scipy.ndimage` and `image` have these names.

>>> import volta_fn as vf
>>> vf.scipy.ndimage.map_coordinates(vf.numpy.array([1.0, 3.0]), [vf.numpy.array([0.5])], order=1)
Array([2.], dtype=float32)
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import Shape, canonical_shape, check_option
from volta_fn.core.dimension import is_symbolic, max_dim
from volta_fn.core.trace import is_concrete
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError
from volta_fn.jit.fused import fused, fused_by_results
from volta_fn.numpy.arguments import axes_of, converted, is_inexact, is_python_scalar, operand, promote_inexact
from volta_fn.primitives.contraction import Precision, check_precision
from volta_fn.primitives.declare import promote_args

__all__ = ["RegularGridInterpolator", "ResizeMethod", "map_coordinates", "resize", "scale_and_translate"]


# Interpolation of values on a regular grid.


@tree.register_pytree_node_class
class RegularGridInterpolator:
    """A function that interpolates values on a grid with unequal steps; a pytree.

    It is called with points of shape (..., n), or a tuple of n > 1 arrays of coordinates, which broadcast, or for n = 1 a vector. It
    returns an array (..., *rest), of the values' dtype, differentiable by points, values and grid. NaN coordinates give NaN.

    Args:
        points: the coordinates along each of the n axes, strictly increasing vectors of at least two.
        values: of shape (m1, …, mn, *rest), float or complex; integers become floats.
        method: "linear", or "nearest", which takes the lower of two neighbours as near.
        bounds_error: not supported, as programs cannot raise errors for the numbers that they get.
        fill_value: the value outside the grid, NaN by default; None extrapolates.

    Raises:
        ArgumentError: another method, `bounds_error`, or coordinates that do not increase (unless they are traced). ShapeError: the shapes
            do not fit. DTypeError: a complex `fill_value` for real values.

    >>> grid = jnp.array([1, 2, 3]), jnp.array([4, 5, 6])
    >>> values = jnp.array([[10, 20, 30], [40, 50, 60], [70, 80, 90]])
    >>> interpolate = vf.scipy.interpolate.RegularGridInterpolator(grid, values)
    >>> interpolate(jnp.array([[1.5, 4.5], [2.2, 5.8], [0.0, 5.0]])).round(4)
    Array([30., 64., nan], dtype=float32)
    """

    def __init__(
        self, points: Sequence[Any], values: Any, method: str = "linear", bounds_error: bool = False, fill_value: Any = np.nan
    ) -> None:
        if bounds_error:
            raise ArgumentError("RegularGridInterpolator: bounds_error is not supported; points outside the grid get the fill_value")
        self.method = _checked(method)
        self.bounds_error: bool = bounds_error
        (self.values,) = promote_args("RegularGridInterpolator", (vnp.asarray(values),), dtypes.INEXACT)
        self.grid = tuple([vnp.asarray(p) for p in points])
        sizes = tuple([axis.size for axis in self.grid])
        if any(axis.ndim != 1 for axis in self.grid) or min(sizes, default=0) < 2 or self.values.shape[: len(sizes)] != sizes:
            shapes = ", ".join(str(axis.shape) for axis in self.grid)
            raise ShapeError(
                f"RegularGridInterpolator: the points must be vectors of at least two, and values have their sizes in front, got {shapes} "
                f"and values {self.values.shape}"
            )
        for i, axis in enumerate(self.grid):
            if is_concrete(axis) and not np.all(np.diff(np.asarray(axis).astype(np.float64)) > 0):
                raise ArgumentError(
                    f"RegularGridInterpolator: the points along axis {i} do not increase; sort them together with the values"
                )
        if fill_value is not None and vnp.iscomplexobj(fill_value) and self.values.dtype not in dtypes.COMPLEX:
            raise DTypeError("RegularGridInterpolator: the fill_value is complex, but the values are real")
        self.fill_value = None if fill_value is None else vnp.asarray(fill_value, self.values.dtype)

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, bool]]:
        """Return the arrays as children, and the method."""
        return (self.grid, self.values, self.fill_value), (self.method, self.bounds_error)

    @classmethod
    def tree_unflatten(cls, aux_data: tuple[str, bool], children: Sequence[Any]) -> RegularGridInterpolator:
        """Rebuild the interpolator, of leaves that may be any objects."""
        interpolator = object.__new__(cls)
        interpolator.grid, interpolator.values, interpolator.fill_value = children
        interpolator.method, interpolator.bounds_error = aux_data
        return interpolator

    def __call__(self, xi: Any, method: str | None = None) -> Array:
        """Interpolate at the points `xi`, by another method than usual if given."""
        chosen = self.method if method is None else _checked(method)
        points = self._points(xi)
        rest = (1,) * (self.values.ndim - len(self.grid))
        cells = [_find(axis, points[..., i], rest) for i, axis in enumerate(self.grid)]
        result = self._nearest(cells) if chosen == "nearest" else self._linear(cells)
        if self.fill_value is not None:
            outside = [(points[..., i] < axis[0]) | (points[..., i] > axis[-1]) for i, axis in enumerate(self.grid)]
            result = vnp.where(vnp.any(vnp.stack(outside), 0).reshape(*points.shape[:-1], *rest), self.fill_value, result)
        wrong = vnp.any(vnp.isnan(points), -1).reshape(*points.shape[:-1], *rest)
        return lax.convert_element_type(vnp.where(wrong, np.nan, result), self.values.dtype)

    def _points(self, xi: Any) -> Array:
        """Return points as an array of floats with the coordinates in the last dimension."""
        size = len(self.grid)
        xi = xi[0] if isinstance(xi, tuple) and len(xi) == 1 else xi
        if isinstance(xi, tuple):
            separate = promote_args("RegularGridInterpolator", (*xi, *self.grid), dtypes.FLOATS)[: len(xi)]
            coordinates = vnp.stack(vnp.broadcast_arrays(*separate), -1)
        else:
            points = vnp.asarray(xi, self.grid[0].dtype) if isinstance(xi, list) and is_inexact(self.grid[0]) else vnp.asarray(xi)
            (coordinates, *_) = promote_args("RegularGridInterpolator", (points, *self.grid), dtypes.FLOATS)
            coordinates = coordinates.reshape(-1, size) if coordinates.ndim < 2 else coordinates
        if coordinates.shape[-1] != size:
            raise ShapeError(f"RegularGridInterpolator: the points have {coordinates.shape[-1]} coordinates, the grid {size}")
        return coordinates

    def _linear(self, cells: Sequence[tuple[Array, Array]]) -> Array:
        """Sum the values at the corners of the cells, weighted."""
        total: Any = 0.0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight: Any = 1.0
            for side, (_, share) in zip(corner, cells, strict=True):
                weight = weight * (share if side else 1.0 - share)
            total = total + weight * self.values[tuple([index + side for side, (index, _) in zip(corner, cells, strict=True)])]
        return total

    def _nearest(self, cells: Sequence[tuple[Array, Array]]) -> Array:
        return self.values[tuple([index + (share.reshape(index.shape) > 0.5) for index, share in cells])]


def _checked(method: str) -> str:
    check_option(method, "RegularGridInterpolator: method", ("linear", "nearest"))
    return method


def _find(axis: Array, x: Array, rest: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the cell of each coordinate, and its position in the cell from 0 to 1.

    The position has further dimensions of size 1, to broadcast against the values.
    """
    axis = lax.convert_element_type(axis, x.dtype)
    index = vnp.clip(vnp.searchsorted(axis, x) - 1, 0, axis.size - 2)
    share = (x - axis[index]) / (axis[index + 1] - axis[index])
    return index, share.reshape(*x.shape, *rest)


# Values of an array between its elements: the nearest one, or a linear mean.

#: The index of one neighbour of each coordinate along one axis, and its weight (None: 1).
Neighbor = tuple[Array, Array | None]


@fused
def map_coordinates(input: Any, coordinates: Sequence[Any], order: int, mode: str = "constant", cval: Any = 0.0) -> Array:
    """Interpolate an array at coordinates.

    Args:
        input: an array of n dimensions.
        coordinates: n arrays of one shape (or that broadcast), the coordinates along each dimension in units of elements.
        order: 0 for the nearest element, 1 for linear interpolation.
        mode: what lies outside: "constant" is `cval`, "nearest" the element at the edge, "wrap" the array again, "reflect" its mirror
            image with the element at the edge repeated, "mirror" the same without repeating it. SciPy calls "constant" and "wrap"
            "grid-constant" and "grid-wrap", which are accepted, too.
        cval: the value outside in the mode "constant".

    Returns:
        An array of the coordinates' shape and the dtype of `input`; integers are rounded.

    Derivatives by `input` and, for order 1, by the coordinates. Raises `ShapeError` unless there is one array of coordinates for each
    dimension, `UnsupportedError` for another order, `ArgumentError` for another mode.

    >>> picture = jnp.array([[0.0, 1.0], [2.0, 3.0]])
    >>> vf.scipy.ndimage.map_coordinates(picture, [jnp.array([0.5]), jnp.array([1.0])], order=1)
    Array([2.], dtype=float32)
    """
    values = operand("map_coordinates", "input", input)
    points = [_coordinate(c, values) for c in coordinates]
    if len(points) != values.ndim:
        raise ShapeError(f"map_coordinates: an array of shape {values.shape} needs {values.ndim} arrays of coordinates, got {len(points)}")
    if order not in _NEIGHBORS:
        raise UnsupportedError(f"map_coordinates: order must be 0 or 1, got {order!r}; splines are in scipy.ndimage")
    check_option(mode, "map_coordinates: mode", _INSIDE)
    if not values.size:
        raise ShapeError(f"map_coordinates: an array of shape {values.shape} has no elements to interpolate")
    outside = converted("map_coordinates", cval, values.dtype) if mode in ("constant", "grid-constant") else None
    neighbors = [_NEIGHBORS[order](p) for p in points]
    terms = [_term(values, corner, mode, outside) for corner in itertools.product(*neighbors)]
    total = sum(terms[1:], start=terms[0])
    return _rounded(total).astype(values.dtype) if values.dtype in dtypes.INTEGERS else total.astype(values.dtype)


def _coordinate(c: Any, values: Array) -> Array:
    """Return coordinates as floats: Python's numbers as exact as the values."""
    wide = values.dtype in (np.float64, np.complex128)
    return (
        converted("map_coordinates", c, np.dtype(np.float64)) if wide and is_python_scalar(c) else promote_inexact("map_coordinates", c)[0]
    )


def _term(values: Array, corner: Sequence[Neighbor], mode: str, outside: Array | None) -> Array:
    """Return one neighbour of each coordinate, times its weight."""
    indices = [i for i, _ in corner]
    inside = [_INSIDE[mode](i, n) for i, n in zip(indices, values.shape, strict=True)]
    term = values[tuple(inside)] if inside else values
    if outside is not None and indices:
        is_inside = [(i >= 0) & (i < n) for i, n in zip(indices, values.shape, strict=True)]
        term = vnp.where(math.prod(is_inside[1:], start=is_inside[0]), term, outside)
    weights = [w for _, w in corner if w is not None]
    return math.prod(weights[1:], start=weights[0]) * term if weights else term


def _nearest(coordinate: Array) -> list[Neighbor]:
    return [(_rounded(coordinate).astype(np.int32), None)]


def _two_nearest(coordinate: Array) -> list[Neighbor]:
    below = vnp.floor(coordinate)
    share = coordinate - below
    index = below.astype(np.int32)
    return [(index, 1 - share), (index + 1, share)]


def _rounded(x: Array) -> Array:
    """Round to integers, halves away from zero."""
    return x if x.dtype in dtypes.INTEGERS else vnp.trunc(x + vnp.where(x < 0, -0.5, 0.5))


def _mirrored(index: Array, size: int) -> Array:
    last = size - 1
    return vnp.abs((index + last) % max(2 * last, 1) - last) if last else vnp.zeros_like(index)


_NEIGHBORS: dict[int, Callable[[Array], list[Neighbor]]] = {0: _nearest, 1: _two_nearest}
#: By mode, from an index and the size of an axis to an index inside.
_INSIDE: dict[str, Callable[[Array, int], Array]] = {
    **dict.fromkeys(["constant", "grid-constant", "nearest"], lambda index, size: vnp.clip(index, 0, size - 1)),
    **dict.fromkeys(["wrap", "grid-wrap"], lambda index, size: index % size),
    "mirror": _mirrored,
    "reflect": lambda index, size: _mirrored(2 * index + 1, 2 * size + 1) // 2,
}


# Resampling of images, and of arrays of any number of dimensions.
#
# A pixel at index i covers the interval from i to i + 1. Each pixel of a result is a mean of input pixels, weighted by a *kernel* of their
# distance from its centre, and the weights of all axes are applied one after the other, as products with small matrices.


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
        check_option(s, "a resize method", _NAMES)
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


def cubic_pieces(a: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the cubic convolution kernel (Keys, 1981) whose slope at 1 is `a`.

    These are its polynomials up to the distance 1, and from there to 2.
    """
    return lambda x: ((a + 2) * x - (a + 3)) * x * x + 1, lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def cubic(a: float) -> Callable[[Array], Array]:
    """Return the kernel of `cubic_pieces` at any distance."""
    near, far = cubic_pieces(a)
    return lambda x: vnp.where(x >= 2, 0, vnp.where(x >= 1, far(x), near(x)))


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
    ResizeMethod.CUBIC: _Kernel(2, cubic(-0.5)),
    ResizeMethod.CUBIC_PYTORCH: _Kernel(2, cubic(-0.75)),
}
