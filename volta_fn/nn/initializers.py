"""Initializers of weights, under the names of `jax.nn.initializers`.

An initializer is a function ``(key, shape, dtype) -> array``; most functions here return one. A *fan* is a number of connections: `fan_in`
is the number of inputs of each output, `fan_out` the number of outputs of each input. Axes that are neither inputs nor outputs nor a batch
are a receptive field (a convolution's window), whose size multiplies both. By default the last two axes are inputs and outputs, as in
`Linear`; weights of convolutions have outputs and inputs first:

>>> he = vf.nn.initializers.he_normal(in_axis=1, out_axis=0)
>>> he(vf.random.key(0), (64, 32, 3, 3)).std().round(2)  # the root of 2 / (32 · 3 · 3)
Array(0.08, dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from volta_fn import dtypes, lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, canonical_shape, check_option
from volta_fn.errors import ShapeError
from volta_fn.primitives.data_movement.movement import canonical_axes, canonical_axis

Axes = int | Sequence[int]
Mode = Literal["fan_in", "fan_out", "fan_avg", "fan_geo_avg"]
Distribution = Literal["truncated_normal", "normal", "uniform"]


@runtime_checkable
class Initializer(Protocol):
    """A function from a key, a shape and a dtype (None: the default) to weights."""

    def __call__(self, key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        """Return the weights."""


def _initializer(make: Callable[[Any, Shape, np.dtype], Array], default: Any = None) -> Initializer:
    """Return an initializer that checks shape and dtype, with a default dtype."""

    def init(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
        chosen = default if dtype is None else dtype
        weights = make(key, canonical_shape(shape), dtypes.as_dtype(float if chosen is None else chosen))
        return constrained(weights, out_sharding)

    return init


# Constants and distributions of a given width.


def zeros(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
    """Return zeros; the key is not used.

    >>> vf.nn.initializers.zeros(vf.random.key(0), (2,))
    Array([0., 0.], dtype=float32)
    """
    return constant(0)(key, shape, dtype, out_sharding)


def ones(key: Any, shape: Sequence[int], dtype: Any = None, out_sharding: Any = None) -> Array:
    """Return ones; the key is not used.

    >>> vf.nn.initializers.ones(vf.random.key(0), (2,))
    Array([1., 1.], dtype=float32)
    """
    return constant(1)(key, shape, dtype, out_sharding)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """Return an initializer of arrays filled with `value`; the key is not used.

    >>> vf.nn.initializers.constant(-7)(None, (2,))
    Array([-7., -7.], dtype=float32)
    """
    return _initializer(lambda key, shape, dtype: vnp.full(shape, value, dtype), dtype)


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Return an initializer that draws uniformly from [0, scale).

    >>> vf.nn.initializers.uniform(10.0)(vf.random.key(0), (2, 3), "bfloat16").dtype
    dtype(bfloat16)
    """
    return _initializer(lambda key, shape, dtype: random.uniform(key, shape, dtype) * vnp.asarray(scale, dtype), dtype)


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Return an initializer that draws normal numbers with mean 0.

    >>> vf.nn.initializers.normal()(vf.random.key(0), (3, 2)).shape
    (3, 2)
    """
    return _initializer(lambda key, shape, dtype: random.normal(key, shape, dtype) * vnp.asarray(stddev, dtype), dtype)


def truncated_normal(stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0) -> Initializer:
    """Return an initializer of normal numbers in [lower, upper], times `stddev`.

    >>> vf.nn.initializers.truncated_normal()(vf.random.key(0), (3, 2)).shape
    (3, 2)
    """

    def make(key: Any, shape: Shape, dtype: np.dtype) -> Array:
        return random.truncated_normal(key, lower, upper, shape, dtype) * vnp.asarray(stddev, dtype)

    return _initializer(make, dtype)


# Distributions whose variance preserves the size of signals.

_AVERAGES: dict[str, Callable[[float, float], float]] = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: math.sqrt(fan_in * fan_out),
}


def _fans(shape: Shape, in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    if len(shape) < 2 and in_axis == -2:
        raise ShapeError(f"variance_scaling: a shape with axes of inputs and outputs is needed, got {shape}; use normal or uniform")
    sizes = [math.prod(shape[a] for a in canonical_axes(axes, len(shape))) for axes in (in_axis, out_axis, batch_axis)]
    field = math.prod(shape) / max(math.prod(sizes), 1)
    return sizes[0] * field, sizes[1] * field


def variance_scaling(
    scale: Any, mode: Mode, distribution: Distribution, in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Return an initializer of random numbers, mean 0 and variance ``scale / fan``.

    Args:
        scale: the factor.
        mode: which fan: "fan_in", "fan_out", their mean "fan_avg" or geometric mean "fan_geo_avg".
        distribution: "normal", "uniform", or "truncated_normal" (truncated at two standard deviations, then scaled to the variance).
        in_axis: the axis or axes of inputs.
        out_axis: the axis or axes of outputs.
        batch_axis: axes to leave out.
        dtype: the dtype where none is given: floating or complex.

    Raises:
        ArgumentError: another mode or distribution. ShapeError (when called): a shape without those axes.

    >>> initializer = vf.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
    >>> bool(abs(initializer(vf.random.key(0), (3, 3))).max() <= 1)
    True
    """
    check_option(mode, "variance_scaling: mode", _AVERAGES)
    check_option(distribution, "variance_scaling: distribution", ("truncated_normal", "normal", "uniform"))

    def make(key: Any, shape: Shape, dtype: np.dtype) -> Array:
        fan = _AVERAGES[mode](*_fans(shape, in_axis, out_axis, batch_axis))
        deviation = vnp.sqrt(vnp.asarray(scale / max(fan, 1e-30), dtype))
        draw = _draw_complex if dtype in dtypes.COMPLEX else _draw
        return draw(key, shape, dtype, distribution, deviation)

    return _initializer(make, dtype)


#: Standard deviations of a standard normal number, real or complex, truncated at magnitude 2.
_CUT_REAL, _CUT_COMPLEX = 0.87962566103423978, 0.95311164380491208


def _draw(key: Any, shape: Shape, dtype: np.dtype, distribution: Distribution, deviation: Array) -> Array:
    if distribution == "normal":
        return random.normal(key, shape, dtype) * deviation
    if distribution == "uniform":
        return random.uniform(key, shape, dtype, -1) * (dtype.type(math.sqrt(3.0)) * deviation)
    return random.truncated_normal(key, -2, 2, shape, dtype) * (deviation / dtype.type(_CUT_REAL))


def _draw_complex(key: Any, shape: Shape, dtype: np.dtype, distribution: Distribution, deviation: Array) -> Array:
    """Draw complex numbers of uniform angle: truncated normal, or uniform in a disc."""
    if distribution == "normal":
        return random.normal(key, shape, dtype) * deviation
    real = dtypes.real_dtype(dtype)
    size_key, angle_key = random.split(key)
    share = random.uniform(size_key, shape, real)
    if distribution == "uniform":
        size = vnp.sqrt(2 * share)
    else:
        size = vnp.sqrt(-vnp.log1p(-share * real.type(-math.expm1(-4.0)))) / real.type(_CUT_COMPLEX)
    angle = real.type(2 * math.pi) * random.uniform(angle_key, shape, real)
    return size.astype(dtype) * lax.complex(vnp.cos(angle), vnp.sin(angle)) * deviation


def _scaled(name: str, scale: float, mode: Mode, distribution: Distribution, source: str) -> Callable[..., Initializer]:
    def maker(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    fan = "fan_in" if mode == "fan_in" else "mean of fan_in and fan_out"
    numbers = distribution.replace("_", " ")
    maker.__name__ = maker.__qualname__ = name
    maker.__doc__ = f"""Return an initializer of {numbers} numbers with variance {scale} / {fan} ({source}).

    Arguments are those of `variance_scaling`.
    """
    return maker


glorot_uniform = xavier_uniform = _scaled("glorot_uniform", 1.0, "fan_avg", "uniform", "Glorot and Bengio 2010")
glorot_normal = xavier_normal = _scaled("glorot_normal", 1.0, "fan_avg", "truncated_normal", "Glorot and Bengio 2010")
lecun_uniform = _scaled("lecun_uniform", 1.0, "fan_in", "uniform", "LeCun et al. 1998")
lecun_normal = _scaled("lecun_normal", 1.0, "fan_in", "truncated_normal", "LeCun et al. 1998")
he_uniform = kaiming_uniform = _scaled("he_uniform", 2.0, "fan_in", "uniform", "He et al. 2015")
he_normal = kaiming_normal = _scaled("he_normal", 2.0, "fan_in", "truncated_normal", "He et al. 2015")


# Orthogonal matrices.


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Return an initializer of orthogonal matrices times `scale` (Saxe et al. 2013).

    Columns are orthonormal, or rows, if those are fewer. Axes other than `column_axis` are merged into the rows. Raises `ShapeError` (when
    called) for a shape of less than two dimensions.

    >>> q = vf.nn.initializers.orthogonal()(vf.random.key(0), (4, 3))
    >>> bool(vf.numpy.allclose(q.T @ q, vf.numpy.eye(3), atol=1e-6))
    True
    """

    def make(key: Any, shape: Shape, dtype: np.dtype) -> Array:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal: a shape of at least two dimensions is needed, got {shape}")
        dim = canonical_axis(column_axis, len(shape), "column_axis")
        rest = (*shape[:dim], *shape[dim + 1 :])
        matrix = random.orthogonal(key, math.prod(rest), (), dtype, shape[dim])
        return vnp.asarray(scale, dtype) * vnp.moveaxis(matrix.reshape(*rest, shape[dim]), -1, dim)

    return _initializer(make, dtype)


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None, *, in_axis: int = -2, out_axis: int = -1) -> Initializer:
    """Return an initializer of orthogonal convolution kernels (Xiao et al. 2018).

    They are an orthogonal matrix at the window's centre, and zero elsewhere.

    Args:
        scale: the factor of the matrix.
        column_axis: which axis of the matrix (in, out) has the orthonormal vectors.
        dtype: the dtype where none is given.
        in_axis: the axis of inputs; 1 for the convolutions here.
        out_axis: the axis of outputs; 0 for the convolutions here. The other axes are the window.

    Raises:
        ShapeError: (when called) unless the window has one to three dimensions and there are no fewer outputs than inputs.

    >>> kernel = vf.nn.initializers.delta_orthogonal(in_axis=1, out_axis=0)(vf.random.key(0), (4, 2, 3, 3))
    >>> bool(vf.numpy.allclose(kernel[:, :, 1, 1].T @ kernel[:, :, 1, 1], vf.numpy.eye(2), atol=1e-6))
    True
    """

    def make(key: Any, shape: Shape, dtype: np.dtype) -> Array:
        if len(shape) not in (3, 4, 5):
            raise ShapeError(
                f"delta_orthogonal: a window of 1 to 3 dimensions in addition to inputs and outputs is needed, got shape {shape}"
            )
        rows, columns = canonical_axes((in_axis, out_axis), len(shape))
        if shape[columns] < shape[rows]:
            raise ShapeError(f"delta_orthogonal: out >= in is needed, got {shape[columns]} outputs and {shape[rows]} inputs in {shape}")
        matrix = orthogonal(scale, column_axis)(key, (shape[rows], shape[columns]), dtype)
        window = [n for axis, n in enumerate(shape) if axis not in (rows, columns)]
        kernel = vnp.zeros((*window, *matrix.shape), dtype).at[tuple([(n - 1) // 2 for n in window])].set(matrix)
        return vnp.moveaxis(kernel, (-2, -1), (rows, columns))

    return _initializer(make, dtype)
