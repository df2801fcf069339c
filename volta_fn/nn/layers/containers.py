"""Containers of layers, functions as layers, and dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, overload

from volta_fn import advice, dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, OutOfBoundsError, ShapeError
from volta_fn.nn.layers.arguments import batched_input, check_dtype
from volta_fn.nn.module import Module, apply, split_state, static

__all__ = [
    "AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "Flatten", "Identity", "Lambda", "RReLU",
    "Sequential",
]  # fmt: skip


# Containers of layers, and functions as layers.


class Identity(Module):
    """Returns its input.

    >>> vf.nn.Identity()(vf.numpy.ones(2))
    Array([1., 1.], dtype=float32)
    """

    def __call__(self, x: Any) -> Any:
        """Return the input."""
        return x


class Lambda(Module):
    """A function as a layer; `Sequential` wraps functions in it.

    >>> vf.nn.Lambda(vf.nn.relu)
    Lambda(function=relu)
    """

    function: Callable[..., Any] = static()

    def __call__(self, x: Any) -> Any:
        """Return the function's value."""
        return self.function(x)


class Flatten(Module):
    """Merges the axes from `start_axis` to `end_axis` (default: all but the first).

    >>> vf.nn.Flatten()(vf.numpy.ones((2, 3, 4))).shape
    (2, 12)
    """

    start_axis: int = static(default=1)
    end_axis: int = static(default=-1)

    def __call__(self, x: Any) -> Array:
        """Return the same numbers in fewer axes.

        Raises `ShapeError` if the axes do not exist or end before they start.
        """
        value = as_value(x)
        start, end = (axis + value.ndim if axis < 0 else axis for axis in (self.start_axis, self.end_axis))
        if not 0 <= start <= end < value.ndim:
            raise ShapeError(f"Flatten: axes {self.start_axis} to {self.end_axis} of an array of shape {value.shape}")
        size = 1
        for length in value.shape[start : end + 1]:
            size *= length
        return value.reshape(*value.shape[:start], size, *value.shape[end + 1 :])


class Sequential(Module):
    """Layers applied one after another, by position or by name; functions are layers.

    Layers that draw random numbers get keys split from the one given. The state is a dict from names to the states of layers with state;
    layers given by position have the names "0", "1", …. `Sequential.init` accepts pairs ``(layer, state)``, as the `init` of such layers
    returns them.

    Raises:
        ArgumentError: layers are given both by position and by name. ArgumentTypeError: one is not callable.

    >>> encode, decode = vf.random.split(vf.random.key(0))
    >>> model = nn.Sequential(encoder=nn.Linear.init(encode, 8, 2), act=nn.relu, decoder=nn.Linear.init(decode, 2, 8))
    >>> model(vf.numpy.ones((3, 8))).shape
    (3, 8)
    >>> model["encoder"], model.decoder, model[1]
    (Linear(weight: f32[8,2], bias: f32[2]), Linear(weight: f32[2,8], bias: f32[8]), Lambda(function=relu))
    >>> model, state = nn.Sequential.init(nn.Linear.init(encode, 8, 2), nn.BatchNorm1d.init(2), nn.relu)
    >>> y, state = model(vf.numpy.ones((3, 8)), state, training=True)
    """

    names: tuple[str, ...] = static()
    layers: tuple[Module, ...] = static()

    def __init__(self, *layers: Callable[..., Any], **named: Callable[..., Any]) -> None:
        if layers and named:
            raise ArgumentError("Sequential: give layers by position or by name, not both")
        by_name = named or {str(i): layer for i, layer in enumerate(layers)}
        self.names = tuple(by_name)
        self.layers = tuple([_as_layer(name, layer) for name, layer in by_name.items()])

    @overload
    @classmethod
    def init(cls, *layers: Callable[..., Any], **named: Callable[..., Any]) -> Self: ...  # type: ignore[overload-overlap]
    @overload
    @classmethod
    def init(cls, *layers: Callable[..., Any] | tuple[Any, Any], **named: Callable[..., Any] | tuple[Any, Any]) -> tuple[Self, Any]: ...
    @classmethod
    def init(cls, *layers: Any, **named: Any) -> Any:
        """Join layers; if some are pairs ``(layer, state)``, the result is such a pair."""
        names = named or {str(i): layer for i, layer in enumerate(layers)}
        ready, states = split_state(names)
        module = cls(**ready) if named else cls(*ready.values())
        return (module, states) if states else module

    @property
    def takes(self) -> frozenset[str]:
        """The union of what the layers take."""
        return frozenset().union(*[layer.takes for layer in self.layers])

    def __call__(self, x: Any, state: Any = None, *, key: Any = None, training: bool = False) -> Any:
        """Return the last layer's output; paired with the new state if a layer has state."""
        stateful = "state" in self.takes
        if stateful and not isinstance(state, dict):
            holders = [name for name, layer in zip(self.names, self.layers, strict=True) if "state" in layer.takes]
            raise ArgumentTypeError(
                f"Sequential: layers {holders} have state: call `y, state = model(x, state)` with the dict that Sequential.init returned"
            )
        keyed = [name for name, layer in zip(self.names, self.layers, strict=True) if "key" in layer.takes]
        keys = dict(zip(keyed, random.split(key, len(keyed)), strict=True)) if keyed and key is not None else {}
        states = dict(state) if stateful else {}
        for name, layer in zip(self.names, self.layers, strict=True):
            x, new = apply(layer, x, states.get(name), key=keys.get(name), training=training)
            if new is not None:
                states[name] = new
        return (x, states) if stateful else x

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, which: int | str | slice) -> Any:
        if isinstance(which, str):
            return getattr(self, which)
        if isinstance(which, slice):
            return type(self)(**dict(zip(self.names[which], self.layers[which], strict=True)))
        if not -len(self) <= which < len(self):
            raise OutOfBoundsError(f"Sequential: layer {which} of {len(self)}")
        return self.layers[which]

    def __getattr__(self, name: str) -> Module:
        children = self.__dict__
        names = children.get("names", ())
        if name in names:
            return children["layers"][names.index(name)]
        if name in advice.MODULES:
            advice.unknown_attribute(type(self).__name__, name, advice.MODULES)
        raise AttributeError(f"Sequential has no layer {name!r}; its layers are {list(names)}")

    def children(self) -> dict[str, Module]:
        """Return the layers by name."""
        return dict(zip(self.names, self.layers, strict=True))

    def hyper_parameters(self) -> dict[str, Any]:
        """Return an empty dict: it has none of its own."""
        return {}

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some layers, given by name, replaced."""
        unknown = sorted(set(changes) - set(self.names))
        if unknown:
            raise ArgumentError(f"Sequential.replace: no layers {unknown}; it has {list(self.names)}")
        layers = [_as_layer(name, layer) for name, layer in (self.children() | changes).items()]
        return self._rebuild(self.names, layers)

    def _structure(self) -> tuple[str, ...]:
        return self.names

    @classmethod
    def _rebuild(cls, structure: tuple[str, ...], children: Sequence[Any]) -> Self:
        module = object.__new__(cls)
        module.__dict__.update(names=structure, layers=tuple(children))
        return module


def _as_layer(name: str, layer: Any) -> Module:
    if isinstance(layer, Module):
        return layer
    if isinstance(layer, tuple):
        raise ArgumentTypeError(f"Sequential: layer {name!r} is a tuple; Sequential.init takes pairs (layer, state)")
    if isinstance(layer, list):
        raise ArgumentTypeError(f"Sequential: layer {name!r} is a list; the layers are arguments, Sequential(*layers)")
    if not callable(layer):
        raise ArgumentTypeError(f"Sequential: layer {name!r} is no layer or function, got {type(layer).__name__} {layer!r}")
    return Lambda(layer)


# Dropout of elements and of channels.


class Dropout(Module):
    """Zeroes each element with probability `p` in training (Srivastava et al. 2014).

    The other elements are divided by 1 - p, which preserves means. It is called ``drop(x, key=key, training=True)``; otherwise it returns
    its input, and the key may be None.

    Raises (when made):
        ArgumentError: `p` is no number between 0 and 1.

    >>> drop = vf.nn.Dropout.init(0.5)
    >>> drop(vf.numpy.ones(6), key=vf.random.key(0), training=True)
    Array([0., 0., 2., 2., 0., 2.], dtype=float32)
    >>> drop(vf.numpy.ones(3))
    Array([1., 1., 1.], dtype=float32)
    """

    p: float = static(default=0.5)

    _spatial: ClassVar[tuple[int, ...] | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not 0 <= self.p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p is a probability, a number from 0 to 1, got {self.p!r}")

    @classmethod
    def init(cls, p: float = 0.5) -> Self:
        """Create the layer that drops with probability `p`."""
        return cls(p)

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the input, in training with dropped elements.

        Raises `ArgumentTypeError` if there is something to draw but no key, `DTypeError` for an input of integers.
        """
        value = as_value(x) if self._spatial is None else batched_input(type(self).__name__, x, self._spatial)
        check_dtype(type(self).__name__, value, dtypes.INEXACT)
        if not training or self.p == 0:
            return value
        if self.p == 1:
            return vnp.zeros_like(value)
        if key is None:
            raise ArgumentTypeError(f"{type(self).__name__}: in training it draws random numbers: call layer(x, key=key, training=True)")
        return self._dropped(value, random.bernoulli(key, 1 - self.p, self._mask_shape(value.shape)))

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self._spatial is None else (*shape[:2], *[1] * (len(shape) - 2))

    def _dropped(self, x: Array, mask: Array) -> Array:
        return vnp.where(mask, x / (1 - self.p), 0)


class Dropout1d(Dropout):
    """Zeroes channels of (N, C, L) (Tompson et al. 2015).

    Neighbouring elements of a channel are too similar to be dropped one by one.

    >>> vf.nn.Dropout1d.init(0.5)(vf.numpy.ones((1, 3, 2)), key=vf.random.key(1), training=True)
    Array([[[2., 2.],
            [0., 0.],
            [2., 2.]]], dtype=float32)
    """

    _spatial = (1,)


class Dropout2d(Dropout):
    """Zeroes channels of (N, C, H, W)."""

    _spatial = (2,)


class Dropout3d(Dropout):
    """Zeroes channels of (N, C, D, H, W)."""

    _spatial = (3,)


#: What selu tends to for large negative inputs.
_SELU_FLOOR = -1.7580993408473766


class AlphaDropout(Dropout):
    """Replaces elements by selu's least value, and preserves mean and variance.

    For networks with `selu` (Klambauer et al. 2017). It is called as `Dropout` is.

    >>> drop = vf.nn.AlphaDropout.init(0.5)
    >>> drop(vf.numpy.zeros(4), key=vf.random.key(0), training=True).round(4)
    Array([-0.7792, -0.7792,  0.7792,  0.7792], dtype=float32)
    """

    def _dropped(self, x: Array, mask: Array) -> Array:
        scale = ((1 - self.p) * (1 + self.p * _SELU_FLOOR**2)) ** -0.5
        return scale * (vnp.where(mask, x, _SELU_FLOOR) - self.p * _SELU_FLOOR)


class FeatureAlphaDropout(AlphaDropout):
    """`AlphaDropout` of channels, of inputs (N, C, …)."""

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], *[1] * (len(shape) - 2))


class RReLU(Module):
    """Leaky ReLU whose slope is drawn for each negative element in training.

    Slopes are uniform between `lower` and `upper` (Xu et al. 2015). It is called ``layer(x, key=key, training=True)``; otherwise the slope
    is their mean, and the key may be None.

    Raises (when made):
        ArgumentError: `lower` is greater than `upper`.

    >>> layer = vf.nn.RReLU.init()
    >>> layer(vf.numpy.array([-6.0, 2.0]), key=vf.random.key(0), training=True)
    Array([-1.9345839,  2.       ], dtype=float32)
    >>> layer(vf.numpy.array([-6.0, 2.0]))
    Array([-1.375,  2.   ], dtype=float32)
    """

    lower: float = static(default=1 / 8)
    upper: float = static(default=1 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lower <= self.upper:
            raise ArgumentError(f"RReLU: lower must be at most upper, got {self.lower} and {self.upper}")

    @classmethod
    def init(cls, lower: float = 1 / 8, upper: float = 1 / 3) -> Self:
        """Create the layer with slopes between two numbers."""
        return cls(lower, upper)

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the input, its negative elements times their slopes.

        Raises `ArgumentTypeError` in training without a key, `DTypeError` unless the input is of floating dtype.
        """
        value = as_value(x)
        check_dtype("RReLU", value)
        if training and key is None:
            raise ArgumentTypeError("RReLU: in training it draws random numbers: call layer(x, key=key, training=True)")
        slope = random.uniform(key, value.shape, value.dtype, self.lower, self.upper) if training else (self.lower + self.upper) / 2
        return vnp.where(value >= 0, value, value * slope)
