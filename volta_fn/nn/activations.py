"""Activation functions under the names of `jax.nn`, and `PReLU`.

Integers become floats unless the function is piecewise linear.
"""

from __future__ import annotations

import math
from typing import Any, Self

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.array import as_value as _array
from volta_fn.dtypes import FLOATS
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.nn.layers.common import check_dtype, is_integer
from volta_fn.nn.module import Module
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.transforms.custom.custom_jvp import custom_jvp

__all__ = ["PReLU", "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu"]
__all__ += ["log1mexp", "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus"]
__all__ += ["sparse_sigmoid", "squareplus", "swish", "tanh"]


_exact_gelu = promoted(lax.gelu)
tanh = promoted(lax.tanh, "tanh", "Return the hyperbolic tangent.")
sigmoid = promoted(lax.logistic, "sigmoid", "Return 1 / (1 + exp(-x)), without overflow.")


def identity(x: Any) -> Array:
    """Return x as an array.

    >>> vf.nn.identity(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-2. , -0.5,  0. ,  1. ], dtype=float32)
    """
    return _array(x)


# Piecewise linear.


@custom_jvp
def relu(x: Any) -> Array:
    """Return max(x, 0), whose derivative at 0 is defined as 0.

    >>> vf.nn.relu(vf.numpy.array([-1.0, 2.0])), float(vf.grad(vf.nn.relu)(0.0))
    (Array([0., 2.], dtype=float32), 0.0)
    """
    return vnp.maximum(x, 0)


relu.defjvps(lambda g, out, x: vnp.where(x > 0, g, 0))


@custom_jvp
def relu6(x: Any) -> Array:
    """Return min(max(x, 0), 6), with derivative 0 at 0 and 6 (Howard et al. 2017)."""
    return vnp.minimum(vnp.maximum(x, 0), 6.0)


relu6.defjvps(lambda g, out, x: vnp.where((x > 0) & (x < 6), g, 0))


@fused
def leaky_relu(x: Any, negative_slope: Any = 1e-2) -> Array:
    """Return x where x >= 0, else negative_slope x (Maas et al. 2013).

    >>> vf.nn.leaky_relu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.02 , -0.005,  0.   ,  1.   ], dtype=float32)
    """
    value = _array(x)
    return vnp.where(value >= 0, value, negative_slope * value)


@fused
def hard_tanh(x: Any) -> Array:
    """Return x clipped to [-1, 1].

    >>> vf.nn.hard_tanh(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-1. , -0.5,  0. ,  1. ], dtype=float32)
    """
    value = _array(x)
    return vnp.where(value > 1, 1, vnp.where(value < -1, -1, value))


@fused
def hard_sigmoid(x: Any) -> Array:
    """Return relu6(x + 3) / 6, a piecewise linear approximation of `sigmoid`.

    >>> vf.nn.hard_sigmoid(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([0.1667, 0.4167, 0.5   , 0.6667], dtype=float32)
    """
    return relu6(_array(x) + 3.0) / 6.0


@fused
def hard_silu(x: Any) -> Array:
    """Return x hard_sigmoid(x), or hard swish (MobileNetV3, Howard et al. 2019).

    >>> vf.nn.hard_silu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.3333, -0.2083,  0.    ,  0.6667], dtype=float32)
    """
    value = _array(x)
    return value * hard_sigmoid(value)


hard_swish = hard_silu


def sparse_sigmoid(x: Any) -> Array:
    """Return clip((x + 1) / 2, 0, 1), the derivative of `sparse_plus`.

    >>> vf.nn.sparse_sigmoid(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([0.  , 0.25, 0.5 , 1.  ], dtype=float32)
    """
    return 0.5 * vnp.clip(_array(x) + 1.0, 0.0, 2.0)


def sparse_plus(x: Any) -> Array:
    """Return 0 below -1, x above 1, and (x + 1)^2 / 4 in between.

    >>> vf.nn.sparse_plus(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([0.    , 0.0625, 0.25  , 1.    ], dtype=float32)
    """
    value = _array(x)
    return vnp.where(value <= -1.0, 0.0, vnp.where(value >= 1.0, value, (value + 1.0) ** 2 / 4))


# Exponential.


@fused
def softplus(x: Any) -> Array:
    """Return log(1 + exp(x)), without overflow.

    >>> vf.nn.softplus(vf.numpy.array([-1000.0, 0.0, 1000.0]))
    Array([0.000000e+00, 6.931472e-01, 1.000000e+03], dtype=float32)
    """
    return vnp.logaddexp(x, 0)


@fused
def log_sigmoid(x: Any) -> Array:
    """Return log(sigmoid(x)), to full precision for very negative x.

    >>> vf.nn.log_sigmoid(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-2.1269, -0.9741, -0.6931, -0.3133], dtype=float32)
    """
    return -softplus(-_array(x))


@fused
def silu(x: Any) -> Array:
    """Return x sigmoid(x), also called swish (Elfwing et al. 2017).

    >>> vf.nn.silu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.2384, -0.1888,  0.    ,  0.7311], dtype=float32)
    """
    value = _array(x)
    return value * sigmoid(value)


swish = silu


@fused
def mish(x: Any) -> Array:
    """Return x tanh(softplus(x)) (Misra 2019).

    >>> vf.nn.mish(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.2525, -0.2207,  0.    ,  0.8651], dtype=float32)
    """
    value = _array(x)
    return value * tanh(softplus(value))


@fused
def elu(x: Any, alpha: Any = 1.0) -> Array:
    """Return x where x > 0, else alpha (exp(x) - 1) (Clevert et al. 2015).

    >>> vf.nn.elu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.8647, -0.3935,  0.    ,  1.    ], dtype=float32)
    """
    value = _array(x)
    # A discarded exponential must not overflow: its infinite derivative times zero would be NaN.
    return vnp.where(value > 0, value, alpha * vnp.expm1(vnp.where(value > 0, 0.0, value)))


@fused
def celu(x: Any, alpha: Any = 1.0) -> Array:
    """Return max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1) (Barron 2017).

    >>> vf.nn.celu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.8647, -0.3935,  0.    ,  1.    ], dtype=float32)
    """
    return vnp.maximum(x, 0.0) + alpha * vnp.expm1(vnp.minimum(x, 0.0) / alpha)


@fused
def selu(x: Any) -> Array:
    """Return the scaled `elu` of Klambauer et al. (2017).

    It keeps activations at mean 0 and variance 1.

    >>> vf.nn.selu(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-1.5202, -0.6918,  0.    ,  1.0507], dtype=float32)
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


@fused
def gelu(x: Any, approximate: bool = True) -> Array:
    """Return x Φ(x), with the normal distribution function Φ.

    See Hendrycks and Gimpel (2016). If `approximate`, Φ is approximated by a tanh.

    >>> vf.nn.gelu(vf.numpy.array([-1.0, 1.0]), approximate=False).round(4)
    Array([-0.1587,  0.8413], dtype=float32)
    """
    if not approximate:
        return _exact_gelu(x)
    value = _array(x)
    near = vnp.clip(value, -10.0, 10.0)  # outside, the tanh is ±1, and the cube and its derivative would overflow
    return value * (0.5 * (1.0 + tanh(math.sqrt(2 / math.pi) * (near + 0.044715 * near**3))))


@fused
def glu(x: Any, axis: int = -1) -> Array:
    """Multiply the first half along `axis` by the sigmoid of the second half.

    See Dauphin et al. (2016). Raises `ShapeError` for an odd size.

    >>> vf.nn.glu(vf.numpy.array([1.0, 2.0, 0.0, 10.0])).round(4)
    Array([0.5   , 1.9999], dtype=float32)
    """
    value = _array(x)
    dim = canonical_axis(axis, value.ndim)
    if value.shape[dim] % 2:
        raise ShapeError(f"glu halves axis {axis}, but the array of shape {value.shape} has an odd size there")
    first, second = vnp.split(value, 2, dim)
    return first * sigmoid(second)


# Algebraic.


@fused
def soft_sign(x: Any) -> Array:
    """Return x / (1 + |x|).

    >>> vf.nn.soft_sign(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.6667, -0.3333,  0.    ,  0.5   ], dtype=float32)
    """
    value = _array(x)
    return value / (vnp.abs(value) + 1)


@fused
def squareplus(x: Any, b: Any = 4.0) -> Array:
    """Return (x + sqrt(x^2 + b)) / 2 (Barron 2021).

    It does not overflow, and has full precision for very negative x.

    >>> vf.nn.squareplus(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([0.4142, 0.7808, 1.    , 1.618 ], dtype=float32)
    """
    return _squareplus(*promote_args("squareplus", (x, b), dtypes.FLOATS))


@custom_jvp
def _squareplus(x: Array, b: Array) -> Array:
    size = 0.5 * vnp.abs(x) + 0.5 * _root(x, b)
    return vnp.where(x < 0, 0.25 * b / size, size)


def _root(x: Array, b: Array) -> Array:
    """Return sqrt(x² + b); by `hypot` where b does not keep the sum from underflow."""
    if x.dtype.itemsize < 4:
        return vnp.hypot(x, vnp.sqrt(b))
    most = dtypes.finfo(x.dtype).maxexp
    down, up = 2.0 ** -(most * 9 // 16), 2.0 ** (most * 9 // 16)
    is_small = b < 2.0 ** -(most * 3 // 4)
    is_huge = x * x + b > 2.0 ** (most * 15 // 16)
    scaled = vnp.where(is_huge, x * down, x)  # before the square, since numbers below the normal ones take long
    # A GPU's compiler may multiply two constants first: b * down * down would be b * 0.
    total = lax.square(scaled) + vnp.where(is_huge, lax.square(vnp.sqrt(b) * down), b)
    root = lax.sqrt(vnp.where(is_small, 1.0, total)) * vnp.where(is_huge, up, vnp.ones_like(x))
    return vnp.where(is_small, vnp.hypot(x, vnp.sqrt(b)), root)


_squareplus.defjvps(lambda g, out, x, b: g * (out / _root(x, b)), lambda g, out, x, b: g * (0.25 / _root(x, b)))


@custom_jvp
def log1mexp(x: Any) -> Array:
    """Return log(1 - exp(-x)) for x >= 0, to full precision (Mächler 2012).

    >>> vf.nn.log1mexp(vf.numpy.array([1e-10, 50.0]))
    Array([-2.3025850e+01, -1.9287499e-22], dtype=float32)
    """
    value = _array(x)
    return vnp.where(value < math.log(2), vnp.log(-vnp.expm1(-value)), vnp.log1p(-vnp.exp(-value)))


log1mexp.defjvps(lambda g, out, x: g / vnp.expm1(x))


class PReLU(Module):
    """x where x > 0, else weight · x (He et al. 2015).

    `weight` has shape (num_parameters,): one slope for all elements, or one for each channel, which is axis 1 of the input.

    >>> vf.nn.PReLU.init()(vf.numpy.array([-2.0, 0.0, 3.0]))
    Array([-0.5,  0. ,  3. ], dtype=float32)
    """

    weight: Array

    @classmethod
    def init(cls, num_parameters: int = 1, slope: float = 0.25, *, dtype: Any = "float32") -> Self:
        """Create equal slopes; `ArgumentError` unless there is at least one."""
        if not is_integer(num_parameters) or num_parameters < 1:
            raise ArgumentError(f"PReLU: num_parameters is an integer, 1 or more, got {num_parameters!r}")
        return cls(vnp.full((num_parameters,), slope, dtype))

    def __call__(self, x: Any) -> Array:
        """Return the activation, of the shape of `x`.

        Raises `ShapeError` unless there is one slope, or one for each channel.
        """
        value = _array(x)
        check_dtype("PReLU", value, FLOATS)
        count = self.weight.shape[0]
        if count == 1:
            slope = self.weight[0]
        elif value.ndim >= 2 and value.shape[1] == count:
            slope = self.weight.reshape(count, *[1] * (value.ndim - 2))
        else:
            raise ShapeError(f"PReLU: {count} slopes need size {count} along axis 1, got shape {value.shape}")
        positive = value > 0
        # Infinities that are not multiplied must not meet the slope: its derivative there would be 0 times infinity.
        return vnp.where(positive, value, slope * vnp.where(positive, 0, value))
