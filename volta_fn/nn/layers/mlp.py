"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.activations import identity, relu
from volta_fn.nn.layers.common import check_sizes
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.module import Module, static

__all__ = ["MLP"]

Size = int | Literal["scalar"]


class MLP(Module):
    """Linear layers with an activation in between, over the last axis.

    >>> mlp = vf.nn.MLP.init(vf.random.key(0), in_size=2, out_size=3, width_size=8, depth=2)
    >>> mlp(vf.numpy.ones((5, 2))).shape, len(mlp.layers)
    ((5, 3), 3)
    """

    layers: tuple[Linear, ...]
    activation: Callable[..., Any] = static(default=relu)
    final_activation: Callable[..., Any] = static(default=identity)
    in_size: Size = static(default=0)
    out_size: Size = static(default=0)

    @classmethod
    def init(
        cls,
        key: Any,
        in_size: Size,
        out_size: Size,
        width_size: int,
        depth: int,
        activation: Callable[..., Any] = relu,
        final_activation: Callable[..., Any] = identity,
        use_bias: bool = True,
        use_final_bias: bool = True,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layers as `Linear.init` does.

        Args:
            key: a random key.
            in_size: size of the input's last axis, or "scalar" for an input without that axis.
            out_size: of the output's, likewise.
            width_size: of the hidden layers.
            depth: their number; 0 for one linear layer.
            activation: after each hidden layer.
            final_activation: of the output.
            use_bias: whether hidden layers have biases.
            use_final_bias: whether the last layer has one.
            dtype: of the parameters.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
        inner, outer = (1 if size == "scalar" else size for size in (in_size, out_size))
        check_sizes("MLP", in_size=inner, out_size=outer, width_size=width_size, depth=depth)
        sizes = [inner, *[width_size] * depth, outer]
        biases = [*[use_bias] * depth, use_final_bias]
        keys = random.split(key, depth + 1)
        layers = [Linear.init(k, n, m, bias=b, dtype=dtype) for k, n, m, b in zip(keys, sizes, sizes[1:], biases, strict=False)]
        return cls(tuple(layers), activation, final_activation, in_size, out_size)

    def __call__(self, x: Any) -> Array:
        """Return the output, whose last axis has `out_size` features.

        Raises `ShapeError` unless the input's last axis has `in_size`.
        """
        value = as_value(x)
        if self.in_size == "scalar":
            value = value[..., None]
        elif value.ndim == 0:
            raise ShapeError(f"MLP: the input needs {self.in_size} features along the last axis, got a 0-d array")
        for layer in self.layers[:-1]:
            value = self.activation(layer(value))
        value = self.final_activation(self.layers[-1](value))
        return value[..., 0] if self.out_size == "scalar" else value
