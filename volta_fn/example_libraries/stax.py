"""Neural networks as pairs of functions, from JAX's `example_libraries`.

A layer is a pair ``(init_fun, apply_fun)``: ``init_fun(rng, input_shape)`` returns the output's shape and the parameters, and
``apply_fun(params, inputs, rng=None)`` the output. -1 in a shape stands for any size. Functions with a capital make layers.

>>> import volta_fn as vf
>>> from volta_fn.example_libraries import stax
>>> init_fun, apply_fun = stax.serial(stax.Dense(8), stax.Relu, stax.Dense(2), stax.LogSoftmax)
>>> shape, params = init_fun(vf.random.key(0), (-1, 4))
>>> shape, apply_fun(params, vf.numpy.ones((3, 4))).shape
((-1, 2), (3, 2))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import lax, nn, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.staging import eval_shape
from volta_fn.errors import ArgumentError
from volta_fn.nn.initializers import glorot_normal, normal, ones, zeros

__all__ = [
    "AvgPool", "BatchNorm", "Conv", "Conv1DTranspose", "ConvTranspose", "Dense", "Dropout", "Elu", "Exp", "FanInConcat", "FanOut",
    "Gelu", "GeneralConv", "GeneralConvTranspose", "Identity", "Layer", "LeakyRelu", "LogSoftmax", "MaxPool", "Relu", "Selu",
    "Sigmoid", "Softmax", "Softplus", "SumPool", "Tanh", "elementwise", "parallel", "randn", "serial", "shape_dependent",
]  # fmt: skip

randn = normal
Layer = tuple[Callable[..., Any], Callable[..., Any]]


def Dense(out_dim: int, W_init: Any = None, b_init: Any = None) -> Layer:
    """Make a linear layer over the last axis, with weights W and bias b."""
    weights, bias = W_init or glorot_normal(), b_init or normal()

    def init_fun(rng: Any, input_shape: Sequence[int]) -> Any:
        first, second = random.split(rng)
        params = weights(first, (input_shape[-1], out_dim)), bias(second, (out_dim,))
        return (*input_shape[:-1], out_dim), params

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Array:
        w, b = params
        return vnp.dot(inputs, w) + b

    return init_fun, apply_fun


def _convolution(
    convolve: Callable[..., Array],
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Any,
    W_init: Any,
    b_init: Any,
) -> Layer:
    """Make a layer of a convolution, given as a function of input and kernel."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    steps = tuple(strides or (1,) * len(filter_shape))
    weights = W_init or glorot_normal(rhs_spec.index("I"), rhs_spec.index("O"))
    bias = b_init or normal(1e-6)

    def run(inputs: Any, kernel: Any) -> Array:
        return convolve(inputs, kernel, steps, padding, dimension_numbers=dimension_numbers)

    def init_fun(rng: Any, input_shape: Sequence[int]) -> Any:
        sizes = iter(filter_shape)
        channels = {"O": out_chan, "I": input_shape[lhs_spec.index("C")]}
        kernel_shape = tuple([channels[c] if c in channels else next(sizes) for c in rhs_spec])
        first, second = random.split(rng)
        kernel = weights(first, kernel_shape)
        output_shape = _shape_of(lambda x: run(x, kernel), input_shape)
        bias_shape = tuple([out_chan if c == "C" else 1 for c in out_spec])
        return output_shape, (kernel, bias(second, bias_shape))

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Array:
        kernel, b = params
        return run(inputs, kernel) + b

    return init_fun, apply_fun


def _shape_of(function: Callable[..., Any], input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return a result's shape, with -1 where the batch is of any size."""
    example = ShapeDtypeStruct([1 if s == -1 else s for s in input_shape], np.float32)
    shape: tuple[int, ...] = eval_shape(function, example).shape
    return tuple([-1 if input_size == -1 else size for input_size, size in zip(input_shape, shape, strict=True)])


def GeneralConv(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Any = None,
    b_init: Any = None,
) -> Layer:
    """Make a convolution.

    `dimension_numbers` name the dimensions of input, kernel and output: ``("NHWC", "HWIO", "NHWC")``.
    """
    return _convolution(lax.conv_general_dilated, dimension_numbers, out_chan, filter_shape, strides, padding, W_init, b_init)


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))


def GeneralConvTranspose(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Any = None,
    b_init: Any = None,
) -> Layer:
    """Make a transposed convolution."""
    return _convolution(lax.conv_transpose, dimension_numbers, out_chan, filter_shape, strides, padding, W_init, b_init)


Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))


def BatchNorm(
    axis: int | Sequence[int] = (0, 1, 2),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_init: Any = zeros,
    gamma_init: Any = ones,
) -> Layer:
    """Make a normalisation by the mean and variance of the batch over `axis`."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)

    def init_fun(rng: Any, input_shape: Sequence[int]) -> Any:
        shape = tuple([d for i, d in enumerate(input_shape) if i not in axes])
        first, second = random.split(rng)
        return tuple(input_shape), (beta_init(first, shape) if center else (), gamma_init(second, shape) if scale else ())

    def apply_fun(params: Any, x: Any, **kwargs: Any) -> Array:
        beta, gamma = params
        shape = tuple([1 if i in axes else d for i, d in enumerate(x.shape)])
        mean, variance = vnp.mean(x, axes, keepdims=True), vnp.var(x, axes, keepdims=True)
        out = (x - mean) * lax.rsqrt(variance + epsilon)
        out = out * vnp.reshape(gamma, shape) if scale else out
        return out + vnp.reshape(beta, shape) if center else out

    return init_fun, apply_fun


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """Make a layer without parameters from a function that preserves shapes."""
    return (lambda rng, input_shape: (input_shape, ())), (lambda params, inputs, **kwargs: fun(inputs, **fun_kwargs))


Tanh = elementwise(vnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(vnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = elementwise(lambda x: x)


def _pooling(
    combine: Any,
    start: float,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Any,
    spec: str | None,
    mean: bool = False,
) -> Layer:
    layout = spec or f"N{'H' * len(window_shape)}C"
    steps = iter(strides or (1,) * len(window_shape))
    sizes = iter(window_shape)
    window = tuple([1 if c in "NC" else next(sizes) for c in layout])
    stride = tuple([1 if c in "NC" else next(steps) for c in layout])

    def pool(x: Any) -> Array:
        total = lax.reduce_window(x, np.asarray(start, x.dtype), combine, window, stride, padding)
        return (
            total / lax.reduce_window(vnp.ones(x.shape, x.dtype), np.asarray(0, x.dtype), lax.add, window, stride, padding)
            if mean
            else total
        )

    return (lambda rng, input_shape: (_shape_of(pool, input_shape), ())), (lambda params, inputs, **kwargs: pool(inputs))


def MaxPool(window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID", spec: str | None = None) -> Layer:
    """Make a layer of the maximum of each window; `spec` is such as "NHWC"."""
    return _pooling(lax.max, -math.inf, window_shape, strides, padding, spec)


def SumPool(window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID", spec: str | None = None) -> Layer:
    """Make a layer of the sum of each window."""
    return _pooling(lax.add, 0.0, window_shape, strides, padding, spec)


def AvgPool(window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID", spec: str | None = None) -> Layer:
    """Make a layer of the mean of each window, without the padding."""
    return _pooling(lax.add, 0.0, window_shape, strides, padding, spec, mean=True)


def _flat_shape(rng: Any, input_shape: Sequence[int]) -> Any:
    return (input_shape[0], math.prod(input_shape[1:])), ()


Flatten: Layer = _flat_shape, lambda params, inputs, **kwargs: vnp.reshape(inputs, (inputs.shape[0], -1))


def FanOut(num: int) -> Layer:
    """Make a layer that returns its input `num` times."""
    return (lambda rng, input_shape: ([input_shape] * num, ())), (lambda params, inputs, **kwargs: [inputs] * num)


FanInSum: Layer = (lambda rng, input_shape: (input_shape[0], ())), (lambda params, inputs, **kwargs: functools.reduce(lax.add, inputs))


def FanInConcat(axis: int = -1) -> Layer:
    """Make a layer that joins several inputs along an axis."""

    def init_fun(rng: Any, input_shape: Sequence[Sequence[int]]) -> Any:
        shape = list(input_shape[0])
        shape[axis] = sum(s[axis] for s in input_shape)
        return tuple(shape), ()

    return init_fun, lambda params, inputs, **kwargs: vnp.concatenate(inputs, axis)


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Make a layer that keeps each number with probability `rate`.

    It does so if `mode` is "train". Its `apply_fun` needs a key, as ``rng=``.
    """

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Array:
        rng = kwargs.get("rng")
        if rng is None:
            raise ArgumentError("a Dropout layer needs a key: apply_fun(params, inputs, rng=key)")
        if mode != "train":
            return inputs
        return vnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return (lambda rng, input_shape: (input_shape, ())), apply_fun


def serial(*layers: Layer) -> Layer:
    """Make a layer that applies several in sequence."""
    inits, applies = zip(*layers, strict=True) if layers else ((), ())

    def init_fun(rng: Any, input_shape: Any) -> Any:
        params = []
        for init in inits:
            rng, layer_rng = random.split(rng)
            input_shape, values = init(layer_rng, input_shape)
            params.append(values)
        return input_shape, params

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        for apply, values, rng in zip(applies, params, _keys(kwargs.pop("rng", None), len(applies)), strict=True):
            inputs = apply(values, inputs, rng=rng, **kwargs)
        return inputs

    return init_fun, apply_fun


def parallel(*layers: Layer) -> Layer:
    """Make a layer of parallel layers, one for each of several inputs."""
    inits, applies = zip(*layers, strict=True) if layers else ((), ())

    def init_fun(rng: Any, input_shape: Any) -> Any:
        keys = random.split(rng, len(inits))
        pairs = [init(key, shape) for init, key, shape in zip(inits, keys, input_shape, strict=True)]
        return [shape for shape, _ in pairs], [values for _, values in pairs]

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> list[Any]:
        keys = _keys(kwargs.pop("rng", None), len(applies))
        return [f(p, x, rng=r, **kwargs) for f, p, x, r in zip(applies, params, inputs, keys, strict=True)]

    return init_fun, apply_fun


def _keys(rng: Any, count: int) -> Sequence[Any]:
    return (None,) * count if rng is None else random.split(rng, count)


def shape_dependent(make_layer: Callable[..., Layer]) -> Layer:
    """Make a layer from a function of the input's shape."""
    return (
        lambda rng, input_shape: make_layer(input_shape)[0](rng, input_shape),
        lambda params, inputs, **kwargs: make_layer(inputs.shape)[1](params, inputs, **kwargs),
    )
