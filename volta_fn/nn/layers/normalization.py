"""Normalisation: batch, layer, RMS, group, instance and local response norms.

The last section normalises weights, by their length or their spectral norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import FLOATS, accumulator, finfo
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.nn.activations import standardize
from volta_fn.nn.layers.arguments import SpatialLayer, batched_input, check_dtype, check_features, check_sizes, is_integer
from volta_fn.nn.layers.linear import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, Linear
from volta_fn.nn.module import Module, apply, split_state, static
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.convolution import Ints

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "BatchNormState", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LayerNorm", "LocalResponseNorm", "RMSNorm", "SpectralNorm", "SpectralNormState", "WeightNorm",
]  # fmt: skip


# Batch normalisation, the simplest layer with state.


class BatchNormState(NamedTuple):
    """Running means and variances of shape (num_features,), and the number of batches."""

    mean: Array
    var: Array
    batches: Array


class _BatchNorm(Module):
    weight: Array | None
    bias: Array | None
    eps: float = static(default=1e-5)
    momentum: float | None = static(default=0.1)
    axis_name: str | None = static(default=None)

    _spatial: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def init(
        cls,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        axis_name: str | None = None,
        dtype: Any = "float32",
    ) -> tuple[Self, BatchNormState]:
        """Create the layer and its state: scales and variances 1, offsets and means 0.

        Args:
            num_features: size of axis 1.
            eps: added to the variance.
            momentum: the weight of the newest batch in the running statistics; None averages all batches equally.
            affine: whether to scale and shift by learnt numbers.
            axis_name: a named axis, of `vmap` or of `shard_map`'s processes, over which the batch's statistics are shared.
            dtype: of the parameters and the state.
        """
        check_sizes(cls.__name__, num_features=num_features)
        ones, zeros = vnp.ones(num_features, dtype), vnp.zeros(num_features, dtype)
        layer = cls(ones if affine else None, zeros if affine else None, eps, momentum, axis_name)
        return layer, BatchNormState(zeros, ones, vnp.zeros((), "int32"))

    def __call__(self, x: Any, state: BatchNormState | None = None, *, training: bool = False) -> tuple[Array, BatchNormState]:
        """Return the normalised features, of the input's dtype, and the new state.

        In training it uses the batch's means and variances, and updates the state (with the unbiased variance); an empty batch changes
        nothing. Otherwise it uses those of the state. float16 and bfloat16 are computed in float32.

        Raises `ShapeError` for other axes or features than the layer's and in training for a single value per feature, which has no
        variance; `DTypeError` unless the input is of floating dtype.
        """
        name = type(self).__name__
        if state is None:
            raise ArgumentTypeError(
                f"{name} has state: `layer, state = nn.{name}.init(features)` made it, and the layer is called `y, state = layer(x, state)`"
            )
        value = batched_input(name, x, self._spatial)
        check_features(name, value, state.mean.shape[0], axis=1)
        check_dtype(name, value)
        wide = value.astype(accumulator(value.dtype))
        if training and value.size:
            mean, var, new = self._of_batch(wide, state)
        else:
            mean, var, new = state.mean, state.var, state
        column = (-1, *[1] * (value.ndim - 2))
        factor = lax.rsqrt(var.astype(wide.dtype) + self.eps)
        if self.weight is not None:
            factor = factor * self.weight
        out = (wide - mean.reshape(column)) * factor.reshape(column)
        if self.bias is not None:
            out = out + self.bias.reshape(column)
        return out.astype(value.dtype), new

    def _of_batch(self, x: Array, state: BatchNormState) -> tuple[Array, Array, BatchNormState]:
        axes = (0, *range(2, x.ndim))
        count = x.size // x.shape[1] * (1 if self.axis_name is None else lax.psum(1, self.axis_name))
        if count == 1:
            raise ShapeError(f"{type(self).__name__}: in training it needs more than one value per feature, got shape {x.shape}")
        mean = vnp.mean(x, axes)
        square = vnp.mean(lax.square(x - mean.reshape(-1, *[1] * (x.ndim - 2))), axes)
        if self.axis_name is not None:
            local_mean, mean = mean, lax.pmean(mean, self.axis_name)
            square = lax.pmean(square + lax.square(local_mean - mean), self.axis_name)
        batches = state.batches + 1
        weight = 1 / batches.astype(x.dtype) if self.momentum is None else self.momentum
        new_mean = _towards(state.mean, mean, weight)
        return mean, square, BatchNormState(new_mean, _towards(state.var, square * (count / (count - 1)), weight), batches)


def _towards(old: Array, now: Array, weight: Any) -> Array:
    """Move a running statistic towards that of this batch, without a gradient."""
    return (old + weight * (stop_gradient(now) - old)).astype(old.dtype)


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L) over N and L.

    See Ioffe & Szegedy (2015).

    >>> bn, state = vf.nn.BatchNorm1d.init(3)
    >>> y, state = bn(vf.numpy.ones((4, 3)), state, training=True)
    >>> state.mean
    Array([0.1, 0.1, 0.1], dtype=float32)
    """

    _spatial = (0, 1)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W) over N, H and W.

    >>> bn, state = vf.nn.BatchNorm2d.init(64)
    >>> y, state = bn(vf.numpy.ones((2, 64, 4, 4)), state, training=True)
    """

    _spatial = (2,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W) over N, D, H and W."""

    _spatial = (3,)


# Layer, RMS, group and instance norms, which compute in float32 at least.


class _Norm(Module):
    """Base of norms with learnt scales `weight` and offsets `bias`, or None."""

    weight: Array | None
    bias: Array | None

    def _scaled(self, x: Array, shape: Ints, dtype: Any) -> Array:
        """Scale and shift normalised numbers by the parameters in that shape."""
        if self.weight is not None:
            x = x * self.weight.reshape(shape)
        if self.bias is not None:
            x = x + self.bias.reshape(shape)
        return x.astype(dtype)


def _parameters(shape: Ints, affine: bool, bias: bool, dtype: Any) -> tuple[Array | None, Array | None]:
    """Return scales of 1 and offsets of 0, or None."""
    return vnp.ones(shape, dtype) if affine else None, vnp.zeros(shape, dtype) if affine and bias else None


def _wide(layer: Module, x: Array) -> Array:
    """Return the input in the dtype to compute in."""
    check_dtype(type(layer).__name__, x)
    return x.astype(accumulator(x.dtype))


def _normalized_shape(layer: str, shape: Any) -> Ints:
    sizes = (shape,) if is_integer(shape, 1) else shape
    if not isinstance(sizes, Sequence) or not sizes or not all(is_integer(size, 1) for size in sizes):
        raise ArgumentError(f"{layer}: normalized_shape is the size of the last axis or sizes of the last axes, at least 1, got {shape!r}")
    return tuple(sizes)


def _last_axes(layer: Module, x: Any, shape: Ints) -> tuple[Array, Ints]:
    """Return the input and the axes to normalise; `ShapeError` if their sizes differ."""
    value = as_value(x)
    if value.shape[-len(shape) :] != shape:
        raise ShapeError(f"{type(layer).__name__}: the last axes of the input have sizes {shape}, got shape {value.shape}")
    return value, tuple(range(value.ndim - len(shape), value.ndim))


class LayerNorm(_Norm):
    """Subtracts the mean of the last axes and divides by their standard deviation.

    See Ba et al. (2016). `weight` and `bias` have shape `normalized_shape` or are None.

    >>> norm = vf.nn.LayerNorm.init(3)
    >>> norm(vf.numpy.array([[1.0, 2.0, 3.0]])).round(3)
    Array([[-1.225,  0.   ,  1.225]], dtype=float32)
    """

    normalized_shape: Ints = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(
        cls, normalized_shape: int | Sequence[int], *, eps: float = 1e-5, affine: bool = True, bias: bool = True, dtype: Any = "float32"
    ) -> Self:
        """Create the layer: scales 1 if `affine`, offsets 0 if also `bias`.

        `eps` is added to the variance. Raises `ArgumentError` unless `normalized_shape` is a size or sizes of axes.
        """
        shape = _normalized_shape(cls.__name__, normalized_shape)
        return cls(*_parameters(shape, affine, bias, dtype), shape, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other last axes than the layer's, `DTypeError` unless they are floats.
        """
        value, axes = _last_axes(self, x, self.normalized_shape)
        return self._scaled(standardize(_wide(self, value), axes, epsilon=self.eps), self.normalized_shape, value.dtype)


class RMSNorm(Module):
    """Divides by the root mean square of the last axes (Zhang & Sennrich 2019).

    `weight` has shape `normalized_shape` or is None.

    >>> norm = vf.nn.RMSNorm.init(2)
    >>> norm(vf.numpy.array([[3.0, 4.0]])).round(3)
    Array([[0.849, 1.131]], dtype=float32)
    """

    weight: Array | None
    normalized_shape: Ints = static()
    eps: float | None = static(default=None)

    @classmethod
    def init(cls, normalized_shape: int | Sequence[int], *, eps: float | None = None, affine: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 if `affine`, else none.

        `eps` is added to the mean square; None means the distance from 1 to the next float. Raises `ArgumentError` unless
        `normalized_shape` is a size or sizes of axes.
        """
        shape = _normalized_shape(cls.__name__, normalized_shape)
        return cls(_parameters(shape, affine, False, dtype)[0], shape, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other last axes than the layer's, `DTypeError` unless they are floats.
        """
        value, axes = _last_axes(self, x, self.normalized_shape)
        wide = _wide(self, value)
        eps = float(finfo(wide.dtype).eps) if self.eps is None else self.eps
        # Converted before the norm, so that the norm and its product with the weight are one kernel.
        scales = None if self.weight is None else self.weight.astype(vnp.result_type(wide, self.weight))
        out = wide * lax.rsqrt(vnp.mean(lax.square(wide), axes, keepdims=True) + eps)
        return (out if scales is None else out * scales).astype(value.dtype)


class GroupNorm(_Norm):
    """Normalises each group of channels of (N, C, *spatial) (Wu & He 2018).

    `weight` and `bias` have shape (num_channels,) or are None. With one group this is a layer norm of each example, with as many groups as
    channels an instance norm.

    >>> vf.nn.GroupNorm.init(2, 6)(vf.numpy.ones((5, 6, 4, 4))).shape
    (5, 6, 4, 4)
    """

    num_groups: int = static()
    num_channels: int = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(cls, num_groups: int, num_channels: int, *, eps: float = 1e-5, affine: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 and offsets 0 if `affine`, else none.

        `eps` is added to the variance. Raises `ArgumentError` unless `num_channels` is a multiple of `num_groups`.
        """
        check_sizes(cls.__name__, num_groups=num_groups, num_channels=num_channels)
        if num_groups == 0 or num_channels % num_groups:
            raise ArgumentError(f"{cls.__name__}: num_channels={num_channels} is no multiple of num_groups={num_groups}")
        return cls(*_parameters((num_channels,), affine, True, dtype), num_groups, num_channels, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other channels than the layer's, `DTypeError` unless they are floats.
        """
        value = as_value(x)
        check_features(type(self).__name__, value, self.num_channels, axis=1)
        grouped = _wide(self, value).reshape(value.shape[0], self.num_groups, self.num_channels // self.num_groups, *value.shape[2:])
        out = standardize(grouped, tuple(range(2, grouped.ndim)), epsilon=self.eps).reshape(value.shape)
        return self._scaled(out, (-1, *[1] * (value.ndim - 2)), value.dtype)


class _InstanceNorm(_Norm, SpatialLayer):
    num_features: int = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(cls, num_features: int, *, eps: float = 1e-5, affine: bool = False, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 and offsets 0 if `affine`, else none.

        `eps` is added to the variance.
        """
        check_sizes(cls.__name__, num_features=num_features)
        return cls(*_parameters((num_features,), affine, True, dtype), num_features, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other axes or channels than the layer's, `DTypeError` unless they are floats.
        """
        value = batched_input(type(self).__name__, x, (self._rank,))
        check_features(type(self).__name__, value, self.num_features, axis=1)
        out = standardize(_wide(self, value), tuple(range(2, value.ndim)), epsilon=self.eps)
        return self._scaled(out, (-1, *[1] * self._rank), value.dtype)


class InstanceNorm1d(_InstanceNorm, rank=1):
    """Normalises each channel of each example of (N, C, L) (Ulyanov et al. 2016).

    It always uses the channel's own mean and variance.

    >>> vf.nn.InstanceNorm1d.init(1)(vf.numpy.array([[[1.0, 2.0, 3.0]]])).round(3)
    Array([[[-1.225,  0.   ,  1.225]]], dtype=float32)
    """


class InstanceNorm2d(_InstanceNorm, rank=2):
    """Normalises each channel of each example of (N, C, H, W)."""


class InstanceNorm3d(_InstanceNorm, rank=3):
    """Normalises each channel of each example of (N, C, D, H, W)."""


class LocalResponseNorm(Module):
    """Divides by (k + alpha · mean of squares of neighbouring channels)^beta.

    See Krizhevsky et al. (2012). Channels lie along axis 1.

    >>> vf.nn.LocalResponseNorm.init(3, alpha=1.0)(vf.numpy.ones((1, 3, 2))).round(3)
    Array([[[0.682, 0.682],
            [0.595, 0.595],
            [0.682, 0.682]]], dtype=float32)
    """

    size: int = static()
    alpha: float = static(default=1e-4)
    beta: float = static(default=0.75)
    k: float = static(default=1.0)

    @classmethod
    def init(cls, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """Create the layer over `size` channels; `ArgumentError` unless that is positive."""
        if not is_integer(size, 1):
            raise ArgumentError(f"LocalResponseNorm: size is an integer of at least 1, got {size!r}")
        return cls(size, alpha, beta, k)

    def __call__(self, x: Any) -> Array:
        """Return the normalised array; float16 and bfloat16 compute in float32.

        Raises `ShapeError` for an input without channels, `DTypeError` for one that is not of floats.
        """
        value = as_value(x)
        check_dtype("LocalResponseNorm", value)
        if value.ndim < 3:
            raise ShapeError(f"LocalResponseNorm: the input has axes (N, C, …, at least one more), got shape {value.shape}")
        wide = value.astype(accumulator(value.dtype))
        window = tuple([self.size if axis == 1 else 1 for axis in range(value.ndim)])
        pads = [(self.size // 2, (self.size - 1) // 2) if axis == 1 else (0, 0) for axis in range(value.ndim)]
        total = lax.reduce_window(vnp.square(wide), np.zeros((), wide.dtype), lax.add, window, (1,) * value.ndim, pads)
        return (wide / (self.k + self.alpha * total / self.size) ** self.beta).astype(value.dtype)


# Layers whose weight is normalised before use, by spectral norm or by length.

#: Layers whose weight has the output's features along axis 1 instead of 0.
_OUTPUT_SECOND = (Linear, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)


def _weight_and_axis(wrapper: str, layer: Any, name: str, axis: int | None) -> tuple[Array, int]:
    """Return the named weight and its axis of vectors (default: output features)."""
    if not isinstance(layer, Module):
        raise ArgumentTypeError(f"{wrapper}: it wraps a layer, or a pair (layer, state), got {type(layer).__name__}")
    weight = layer.children().get(name)
    if not isinstance(weight, Array) or weight.ndim == 0 or weight.dtype not in FLOATS:
        raise ArgumentError(f"{wrapper}: {type(layer).__name__} has no array {name!r} of floats; its children are {list(layer.children())}")
    chosen = int(isinstance(layer, _OUTPUT_SECOND)) if axis is None else axis
    if not is_integer(chosen) or chosen >= weight.ndim:
        raise ArgumentError(f"{wrapper}: axis is one of the {weight.ndim} of {name!r}, from 0, got {axis!r}")
    return weight, chosen


def _rows(weight: Array, axis: int) -> Array:
    """Return the weight as a matrix whose rows count along `axis`, widened."""
    wide = vnp.moveaxis(weight, axis, 0).astype(accumulator(weight.dtype))
    return wide.reshape(wide.shape[0], math.prod(wide.shape[1:]))


class SpectralNormState(NamedTuple):
    """Estimates of the weight's first singular vectors; the inner layer's state."""

    u: Array
    v: Array
    layer: Any = None


class SpectralNorm(Module):
    """A layer whose weight is divided by its largest singular value.

    See Miyato et al. (2018). A power iteration estimates the value; each call in training makes a step. The layer has state even if the
    wrapped one has none. The weight that is learnt, before the division, is that of `layer`.

    >>> for_layer, for_vectors = vf.random.split(vf.random.key(0))
    >>> layer, state = nn.SpectralNorm.init(for_vectors, nn.Linear.init(for_layer, 3, 5))
    >>> y, state = layer(vf.numpy.ones((2, 3)), state, training=True)
    >>> vf.numpy.linalg.norm(layer.unwrapped(state).weight, 2).round(2)
    Array(1., dtype=float32)
    """

    layer: Module
    name: str = static(default="weight")
    axis: int = static(default=0)
    n_power_iterations: int = static(default=1)
    eps: float = static(default=1e-12)

    @classmethod
    def init(
        cls, key: Any, layer: Any, name: str = "weight", *, axis: int | None = None, n_power_iterations: int = 1, eps: float = 1e-12
    ) -> tuple[Self, SpectralNormState]:
        """Create the layer and its state, after 15 steps from random vectors.

        Args:
            key: a random key.
            layer: the layer to wrap, or a pair ``(layer, state)``.
            name: of its weight.
            axis: the axis of the weight that counts the rows when it is reshaped to a matrix; default: that of the output's features.
            n_power_iterations: steps of each call in training.
            eps: the lower bound of lengths in divisions.

        Raises `ArgumentError` if the layer has no such weight, `ArgumentTypeError` if it is not a layer.
        """
        inner, layer_state = split_state(layer)
        weight, chosen = _weight_and_axis(cls.__name__, inner, name, axis)
        if not is_integer(n_power_iterations, 1):
            raise ArgumentError(f"{cls.__name__}: n_power_iterations is an integer of at least 1, got {n_power_iterations!r}")
        module = cls(inner, name, chosen, n_power_iterations, eps)
        matrix = _rows(weight, chosen)
        for_u, for_v = random.split(key)
        u, v = (random.normal(k, (n,), matrix.dtype) for k, n in zip((for_u, for_v), matrix.shape, strict=True))
        u, v = module._iterate(matrix, u, v, 15)
        return module, SpectralNormState(u, v, layer_state)

    @property
    def takes(self) -> frozenset[str]:
        """State, training, and the options of the wrapped layer."""
        return self.layer.takes | {"state", "training"}

    def __call__(self, x: Any, state: SpectralNormState, *, key: Any = None, training: bool = False) -> tuple[Any, SpectralNormState]:
        """Return the wrapped layer's output and the new state, which has no gradient."""
        if training:
            matrix = stop_gradient(_rows(getattr(self.layer, self.name), self.axis))
            u, v = self._iterate(matrix, state.u, state.v, self.n_power_iterations)
            state = state._replace(u=u, v=v)
        out, layer_state = apply(self.unwrapped(state), x, state.layer, key=key, training=training)
        return out, state._replace(layer=layer_state)

    def unwrapped(self, state: SpectralNormState) -> Any:
        """Return the wrapped layer with its weight normalised."""
        weight = getattr(self.layer, self.name)
        largest = vnp.dot(state.u, vnp.matmul(_rows(weight, self.axis), state.v))
        return self.layer.replace(**{self.name: (weight / largest).astype(weight.dtype)})

    def _iterate(self, matrix: Array, u: Array, v: Array, steps: int) -> tuple[Array, Array]:
        for _ in range(steps):
            u = self._unit(vnp.matmul(matrix, v))
            v = self._unit(vnp.matmul(u, matrix))
        return u, v

    def _unit(self, vector: Array) -> Array:
        return vector / vnp.maximum(vnp.sqrt(vnp.dot(vector, vector)), self.eps)


class WeightNorm(Module):
    """A layer whose weight is split into lengths and directions of its vectors.

    See Salimans & Kingma (2016). The layer computes with ``magnitude · weight / ‖weight‖``, where `weight` is that of the wrapped `layer`,
    of which only the direction matters. It is called like the wrapped layer.

    >>> linear = nn.Linear.init(vf.random.key(0), 3, 5)
    >>> layer = nn.WeightNorm.init(linear)
    >>> layer
    WeightNorm(  # 25 parameters
      layer: Linear(weight: f32[3,5], bias: f32[5])  # 20
      magnitude: f32[1,5]
      name='weight'
      axis=1
    )
    >>> vf.numpy.allclose(layer.unwrapped().weight, linear.weight)
    Array(True, dtype=bool)
    """

    layer: Module
    magnitude: Array
    name: str = static(default="weight")
    axis: int = static(default=0)

    @overload
    @classmethod
    def init(cls, layer: Module, name: str = "weight", *, axis: int | None = None) -> Self: ...
    @overload
    @classmethod
    def init(cls, layer: tuple[Module, Any], name: str = "weight", *, axis: int | None = None) -> tuple[Self, Any]: ...
    @classmethod
    def init(cls, layer: Any, name: str = "weight", *, axis: int | None = None) -> Any:
        """Create the layer, which computes the same as `layer` does.

        If `layer` is a pair ``(layer, state)``, returns such a pair.

        Args:
            layer: the layer to wrap.
            name: of its weight.
            axis: the axis of the weight that counts the vectors; default: that of the output's features.

        Raises `ArgumentError` if the layer has no such weight, `ArgumentTypeError` if it is not a layer.
        """
        inner, state = split_state(layer)
        weight, chosen = _weight_and_axis(cls.__name__, inner, name, axis)
        module = cls(inner, _lengths(weight, chosen).astype(weight.dtype), name, chosen)
        return module if state is None else (module, state)

    @property
    def takes(self) -> frozenset[str]:
        """The options that the wrapped layer takes."""
        return self.layer.takes

    def __call__(self, x: Any, state: Any = None, *, key: Any = None, training: bool = False) -> Any:
        """Return the output of the wrapped layer."""
        out, state = apply(self.unwrapped(), x, state, key=key, training=training)
        return (out, state) if "state" in self.takes else out

    def unwrapped(self) -> Any:
        """Return the wrapped layer with its weight normalised."""
        weight = getattr(self.layer, self.name)
        factor = self.magnitude / _lengths(weight, self.axis)
        return self.layer.replace(**{self.name: (weight * factor).astype(weight.dtype)})


def _lengths(weight: Array, axis: int) -> Array:
    """Return the lengths of the vectors that `axis` counts; other axes have size 1."""
    wide = weight.astype(accumulator(weight.dtype))
    others = tuple([i for i in range(weight.ndim) if i != axis])
    return vnp.sqrt(vnp.sum(lax.square(wide), others, keepdims=True))
