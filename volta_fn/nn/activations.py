"""Activation functions under the names of `jax.nn` and of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np

from volta_fn import dtypes, lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.array import as_value as _array
from volta_fn.core.aval import check_option
from volta_fn.core.trace import axis_size, concrete_or_raise
from volta_fn.dtypes import FLOATS
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.nn.layers.arguments import check_dtype, is_integer
from volta_fn.nn.module import Module
from volta_fn.numpy.arguments import is_complex, narrowed, promote_inexact, wide, wide_index
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.collectives import axis_index
from volta_fn.primitives.data_movement.movement import canonical_axis
from volta_fn.primitives.declare import promote_args, promoted
from volta_fn.scipy.special import logsumexp
from volta_fn.scipy.special.exponential import softmax
from volta_fn.transforms.custom_derivatives import custom_jvp

__all__ = [
    "PReLU", "celu", "elu", "gelu", "glu", "gumbel_softmax", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "hardshrink",
    "identity", "leaky_relu", "log1mexp", "log_sigmoid", "logmeanexp", "mish", "normalize", "one_hot", "relu", "relu6", "selu", "sigmoid",
    "silu", "soft_sign", "softmin", "softplus", "softshrink", "sparse_plus", "sparse_sigmoid", "squareplus", "standardize", "swish", "tanh",
    "tanhshrink", "threshold",
]  # fmt: skip


# `logmeanexp`, `standardize` and `one_hot`.

Axis = int | Sequence[int] | None


def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Array:
    """Return log(mean(exp(x))) along `axis`, without overflow.

    Elements not in `where` do not count.

    >>> vf.nn.logmeanexp(vf.numpy.array([0.0, 0.0])).round(4)
    Array(0., dtype=float32)
    """
    value = as_value(x)
    total = logsumexp(wide(value), axis, where=where, keepdims=keepdims)
    if where is None:
        count: Any = np.asarray(value.size // max(total.size, 1), total.dtype)
    else:
        count = vnp.sum(vnp.ones_like(value, dtype=total.dtype), axis, keepdims=keepdims, where=where)
    return narrowed(total - vnp.log(count), value)


def standardize(
    x: Any,
    axis: Axis = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 1e-5,
    where: Any = None,
    *,
    algorithm: Literal["fast", "stable"] = "stable",
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon) along `axis`.

    Args:
        x: an array.
        axis: the axes over which mean and variance are computed.
        mean: replaces that of the elements.
        variance: replaces that of the elements.
        epsilon: keeps the root from being zero.
        where: bool; elements not in it do not count.
        algorithm: how the variance is computed: "stable" as the mean of squared differences from the mean; "fast" (JAX's default) as
            the mean of the squares less the square of the mean, which loses all precision where the mean is large.

    >>> vf.nn.standardize(vf.numpy.array([1.0, 2.0, 3.0])).round(3)
    Array([-1.225,  0.   ,  1.225], dtype=float32)
    """
    check_option(algorithm, "standardize: algorithm", ("fast", "stable"))
    operands = promote_inexact("standardize", x, *[v for v in (mean, variance) if v is not None])
    value = wide(operands[0])
    centre = vnp.mean(value, axis, keepdims=True, where=where) if mean is None else mean
    if variance is not None:
        spread = variance
    elif algorithm == "stable":
        spread = vnp.mean(vnp.square(value - centre), axis, keepdims=True, where=where)
    else:
        squares = vnp.mean(vnp.square(value), axis, keepdims=True, where=where)
        spread = vnp.maximum(squares - vnp.square(centre), 0)
    return narrowed((value - centre) / vnp.sqrt(spread + epsilon), operands[0])


@fused
def one_hot(x: Any, num_classes: Any, *, dtype: Any = None, axis: Any = -1) -> Array:
    """Encode each class number of `x` as a one-hot vector along a new `axis`.

    The vector is zero if the number is not in range(num_classes). `axis` may name an axis of a surrounding `vmap` with `num_classes`
    examples, each of which then holds its own class. The default dtype is float32. Raises `DTypeError` for class numbers that are not
    integers, and `ArgumentError` if `num_classes` is not the size of that axis.

    >>> vf.nn.one_hot(vf.numpy.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    value = vnp.asarray(x)
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise DTypeError(f"one_hot: class numbers are integers, got {value.aval}; convert them with x.astype('int32')")
    return one_hot_of_numbers(value, num_classes, dtype, axis)


def one_hot_of_numbers(value: Array, num_classes: Any, dtype: Any, axis: Any) -> Array:
    """Return what `one_hot` does, for class numbers of any dtype."""
    count = int(concrete_or_raise(num_classes, "argument num_classes of one_hot"))
    result_dtype = dtypes.default(vnp.dtype("float32")) if dtype is None else dtype
    if isinstance(axis, str):
        if count != axis_size(axis):
            raise ArgumentError(f"one_hot: num_classes={count} differs from the size {axis_size(axis)} of the axis {axis!r}")
        return (value == axis_index(axis)).astype(result_dtype)
    dim = canonical_axis(axis, value.ndim + 1)
    if value.dtype in dtypes.INTEGERS | dtypes.BOOL:
        value = wide_index(value, count)
    classes = vnp.arange(count, dtype=value.dtype).reshape((count,) + (1,) * (value.ndim - dim))
    return (vnp.expand_dims(value, dim) == classes).astype(result_dtype)


# Activation functions under the names of `jax.nn`, and `PReLU`.
#
# Integers become floats unless the function is piecewise linear.

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
    inner = vnp.clip(value, -1.0, 1.0)  # the derivative of a square that overflows would be NaN, times 0
    return vnp.where(value <= -1.0, 0.0, vnp.where(value >= 1.0, value, (inner + 1.0) ** 2 / 4))


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


def soft_sign(x: Any) -> Array:
    """Return x / (1 + |x|).

    >>> vf.nn.soft_sign(vf.numpy.array([-2.0, -0.5, 0.0, 1.0])).round(4)
    Array([-0.6667, -0.3333,  0.    ,  0.5   ], dtype=float32)
    """
    value = _array(x)
    return value / (vnp.abs(value) + 1) if is_complex(value) else _soft_sign(value)


@custom_jvp
def _soft_sign(x: Array) -> Array:
    return x / (vnp.abs(x) + 1)


# Of real numbers: the derivative of the quotient is a difference of almost equal numbers.
_soft_sign.defjvps(lambda g, out, x: g * lax.square(1 / (vnp.abs(x) + 1)))


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


_squareplus.defjvps(
    lambda g, out, x, b: g * (out / _root(x, b)),
    lambda g, out, x, b: (g * (0.25 / _root(x, b))).astype(out.dtype),  # b may be a number, whose tangent is wider
)


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


# Functions of PyTorch that `jax.nn` lacks: shrinkage, thresholds, samples.


def hardshrink(x: Any, lambd: Any = 0.5) -> Array:
    """Return x, but 0 between -lambd and lambd.

    >>> vf.nn.hardshrink(vf.numpy.array([-1.0, 0.3, 0.6]))
    Array([-1. ,  0. ,  0.6], dtype=float32)
    """
    value = as_value(x)
    return vnp.where(vnp.abs(value) <= lambd, vnp.zeros_like(value), value)


def softshrink(x: Any, lambd: Any = 0.5) -> Array:
    """Return x moved towards 0 by lambd, but not beyond.

    >>> vf.nn.softshrink(vf.numpy.array([-1.0, 0.3, 0.75]))
    Array([-0.5 ,  0.  ,  0.25], dtype=float32)
    """
    value = as_value(x)
    return vnp.where(value > lambd, value - lambd, vnp.where(value < -lambd, value + lambd, 0 * value))


def tanhshrink(x: Any) -> Array:
    """Return x - tanh(x).

    >>> vf.nn.tanhshrink(vf.numpy.array([0.0, 2.0])).round(4)
    Array([0.   , 1.036], dtype=float32)
    """
    (value,) = promote_inexact("tanhshrink", x)
    return value - vnp.tanh(value)


def threshold(x: Any, threshold: Any, value: Any) -> Array:
    """Return x where it exceeds the threshold, else a number.

    >>> vf.nn.threshold(vf.numpy.array([0.5, 2.0]), 1.0, -1.0)
    Array([-1.,  2.], dtype=float32)
    """
    operand = as_value(x)
    return vnp.where(operand <= threshold, value, operand)


def softmin(x: Any, axis: Any = -1) -> Array:
    """Return softmax(-x).

    >>> vf.nn.softmin(vf.numpy.array([0.0, 0.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    return softmax(-as_value(x), axis)


def normalize(x: Any, p: float = 2.0, axis: Any = 1, eps: float = 1e-12) -> Array:
    """Return vectors along `axis` divided by their p-norm, at least by `eps`.

    >>> vf.nn.normalize(vf.numpy.array([[3.0, 4.0]]))
    Array([[0.6, 0.8]], dtype=float32)
    """
    (value,) = promote_inexact("normalize", x)
    full = wide(value)
    return narrowed(full / vnp.maximum(vnp.linalg.norm(full, p, axis=axis, keepdims=True), eps), value)


def gumbel_softmax(key: Any, logits: Any, tau: float = 1.0, hard: bool = False, axis: int = -1) -> Array:
    """Return a relaxed sample of the categorical distribution (Jang et al. 2017).

    Args:
        key: a random key.
        logits: log-probabilities, up to a constant.
        tau: the temperature; the lower, the closer to one-hot.
        hard: whether to return one-hot vectors, with the derivatives of the relaxed ones.
        axis: the axis of classes.

    >>> vf.nn.gumbel_softmax(vf.random.key(0), vf.numpy.zeros(3), hard=True)
    Array([0., 1., 0.], dtype=float32)
    """
    (value,) = promote_inexact("gumbel_softmax", logits)
    relaxed = softmax((value + random.gumbel(key, value.shape, value.dtype)) / tau, axis)
    if not hard:
        return relaxed
    sample = one_hot(vnp.argmax(relaxed, axis), value.shape[axis], dtype=value.dtype, axis=axis)
    return sample + (relaxed - stop_gradient(relaxed))
