"""The feed-forward sublayer of transformers, applied to each position separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from volta_fn import random
from volta_fn.core.array import Array
from volta_fn.nn.activations import relu
from volta_fn.nn.layers.dropout import Dropout
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.module import Module, static

__all__ = ["FeedForward"]


class FeedForward(Module):
    """linear2(activation(linear1(x))), optionally gated (Shazeer 2020).

    The gated form is linear2(activation(gate(x)) * linear1(x)). With `nn.silu` it is SwiGLU; Llama's w1, w3 and w2 are `gate`, `linear1`
    and `linear2`. Dropout applies to the input of `linear2`.

    >>> layer = vf.nn.FeedForward.init(vf.random.key(0), 8, 32, activation=vf.nn.silu, gated=True, bias=False)
    >>> layer
    FeedForward(  # 768 parameters
      linear1: Linear(weight: f32[8,32])  # 256
      linear2: Linear(weight: f32[32,8])  # 256
      gate: Linear(weight: f32[8,32])  # 256
      dropout: Dropout(p=0.0)
      activation=silu
    )
    >>> layer(vf.numpy.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    linear1: Linear
    linear2: Linear
    gate: Linear | None = None
    activation: Callable[[Any], Any] = static(default=relu)
    dropout: Dropout = Dropout(0.0)

    @classmethod
    def init(
        cls,
        key: Any,
        embed_dim: int,
        hidden_dim: int | None = None,
        *,
        activation: Callable[[Any], Any] = relu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with the initial weights of `Linear`.

        Args:
            key: of the random weights.
            embed_dim: features of input and output.
            hidden_dim: hidden features (default: 4 * embed_dim).
            activation: a function of arrays.
            gated: whether the activation's result is a factor of `linear1`'s, as in GLU.
            bias: whether the products have biases.
            dropout: the probability of dropping a hidden feature in training.
            dtype: of the parameters.
        """
        hidden = 4 * embed_dim if hidden_dim is None else hidden_dim
        first, second, third = random.split(key, 3)
        up = Linear.init(first, embed_dim, hidden, bias=bias, dtype=dtype)
        down = Linear.init(second, hidden, embed_dim, bias=bias, dtype=dtype)
        gate = Linear.init(third, embed_dim, hidden, bias=bias, dtype=dtype) if gated else None
        return cls(up, down, gate, activation, Dropout.init(dropout))

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the result, of the shape of `x`, (…, embed_dim).

        Raises `ArgumentTypeError` if a key for the dropout is missing in training.
        """
        up = self.linear1(x)
        hidden = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.linear2(self.dropout(hidden, key=key, training=training))
