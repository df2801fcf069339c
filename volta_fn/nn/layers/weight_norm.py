"""Layers whose weight is normalised before use, by spectral norm or by length."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self, overload

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.nn.layers.arguments import is_integer
from volta_fn.nn.layers.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.module import Module, apply, split_state, static
from volta_fn.primitives.call import stop_gradient

__all__ = ["SpectralNorm", "SpectralNormState", "WeightNorm"]


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
        inner, own = split_state(layer)
        weight, chosen = _weight_and_axis(cls.__name__, inner, name, axis)
        if not is_integer(n_power_iterations, 1):
            raise ArgumentError(f"{cls.__name__}: n_power_iterations is an integer of at least 1, got {n_power_iterations!r}")
        module = cls(inner, name, chosen, n_power_iterations, eps)
        matrix = _rows(weight, chosen)
        for_u, for_v = random.split(key)
        u, v = (random.normal(k, (n,), matrix.dtype) for k, n in zip((for_u, for_v), matrix.shape, strict=True))
        u, v = module._iterate(matrix, u, v, 15)
        return module, SpectralNormState(u, v, own)

    @property
    def takes(self) -> frozenset[str]:
        """State, training, and what the wrapped layer takes."""
        return self.layer.takes | {"state", "training"}

    def __call__(self, x: Any, state: SpectralNormState, *, key: Any = None, training: bool = False) -> tuple[Any, SpectralNormState]:
        """Return the wrapped layer's output and the new state, which has no gradient."""
        if training:
            matrix = stop_gradient(_rows(getattr(self.layer, self.name), self.axis))
            u, v = self._iterate(matrix, state.u, state.v, self.n_power_iterations)
            state = state._replace(u=u, v=v)
        out, own = apply(self.unwrapped(state), x, state.layer, key=key, training=training)
        return out, state._replace(layer=own)

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
        """What the wrapped layer takes."""
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
