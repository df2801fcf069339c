"""Linear and bilinear layers, and embeddings."""

from __future__ import annotations

from typing import Any, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import INTEGERS
from volta_fn.errors import ArgumentError, DTypeError
from volta_fn.nn.layers.common import check_features, check_sizes, uniform_by_fan
from volta_fn.nn.module import Module, static
from volta_fn.primitives.barriers import stop_gradient

__all__ = ["Bilinear", "Embedding", "Linear"]


class Linear(Module):
    """x @ weight + bias, over the last axis.

    `weight` has shape (in_features, out_features), `bias` (out_features,) or None.

    >>> layer = vf.nn.Linear.init(vf.random.key(0), 3, 2)
    >>> layer(vf.numpy.ones((5, 3))).shape
    (5, 2)
    """

    weight: Array
    bias: Array | None = None

    @classmethod
    def init(cls, key: Any, in_features: int, out_features: int, *, bias: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer with weights and biases uniform between ±1/√in_features.

        Raises `ArgumentError` for sizes that are negative or not integers.
        """
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        for_weight, for_bias = random.split(key)
        weight = uniform_by_fan(for_weight, (in_features, out_features), in_features, dtype)
        return cls(weight, uniform_by_fan(for_bias, (out_features,), in_features, dtype) if bias else None)

    def __call__(self, x: Any) -> Array:
        """Return x @ weight + bias, of shape (…, out_features).

        Raises `ShapeError` unless the last axis of `x` has size in_features.
        """
        value = as_value(x)
        check_features("Linear", value, self.weight.shape[0])
        product = vnp.matmul(value, self.weight)
        return product if self.bias is None else product + self.bias


class Bilinear(Module):
    """x1ᵀ · weight[k] · x2 + bias[k] for each output feature k.

    `weight` has shape (out_features, in1_features, in2_features), `bias` (out_features,) or None.

    >>> layer = vf.nn.Bilinear.init(vf.random.key(0), 3, 4, 2)
    >>> layer(vf.numpy.ones((5, 3)), vf.numpy.ones((5, 4))).shape
    (5, 2)
    """

    weight: Array
    bias: Array | None = None

    @classmethod
    def init(cls, key: Any, in1_features: int, in2_features: int, out_features: int, *, bias: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer with weights and biases uniform between ±1/√in1_features."""
        check_sizes("Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        for_weight, for_bias = random.split(key)
        weight = uniform_by_fan(for_weight, (out_features, in1_features, in2_features), in1_features, dtype)
        return cls(weight, uniform_by_fan(for_bias, (out_features,), in1_features, dtype) if bias else None)

    def __call__(self, x1: Any, x2: Any) -> Array:
        """Return the bilinear forms, of shape (…, out_features).

        Raises `ShapeError` if the last axes do not fit the weight.
        """
        left, right = as_value(x1), as_value(x2)
        check_features("Bilinear (first)", left, self.weight.shape[1])
        check_features("Bilinear (second)", right, self.weight.shape[2])
        product = vnp.einsum("...i,kij,...j->...k", left, self.weight, right)
        return product if self.bias is None else product + self.bias


class Embedding(Module):
    """A table of vectors, of shape (num_embeddings, embedding_dim).

    The vector of `padding_idx`, if given, gets no gradient. A known index outside the table raises; in a compiled program it gives
    a vector of NaN, or with VOLTA_CHECK_INDICES=1 raises, too.

    >>> table = vf.nn.Embedding.init(vf.random.key(0), 10, 4)
    >>> table(vf.numpy.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    weight: Array
    padding_idx: int | None = static(default=None)

    @classmethod
    def init(cls, key: Any, num_embeddings: int, embedding_dim: int, *, padding_idx: int | None = None, dtype: Any = "float32") -> Self:
        """Create standard normal vectors; that of `padding_idx` is 0."""
        check_sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        weight = random.normal(key, (num_embeddings, embedding_dim), dtype)
        if padding_idx is None:
            return cls(weight)
        if not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"Embedding: padding_idx {padding_idx} lies outside a table of {num_embeddings}")
        return cls(weight.at[padding_idx].set(0), padding_idx % num_embeddings)

    def __call__(self, indices: Any) -> Array:
        """Look up vectors, of shape (*indices.shape, embedding_dim).

        Raises `DTypeError` unless the indices are integers, and `OutOfBoundsError` for known ones outside the table.
        """
        numbers = as_value(indices)
        if numbers.dtype not in INTEGERS:
            raise DTypeError(f"Embedding: indices are integers, got {numbers.aval}")
        weight = self.weight
        if self.padding_idx is not None:
            row = stop_gradient(weight[self.padding_idx])
            weight = weight.at[self.padding_idx].set(row)
        return vnp.take(weight, numbers, axis=0)

    def attend(self, x: Any) -> Array:
        """Return x @ weightᵀ, for an output layer that shares the table."""
        value = as_value(x)
        check_features("Embedding.attend", value, self.weight.shape[1])
        return vnp.matmul(value, self.weight.T)
