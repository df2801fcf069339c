"""Linear and bilinear layers, embeddings, perceptrons, and the adaptive softmax."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.trace import is_concrete
from volta_fn.dtypes import INTEGERS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.activations import identity, relu
from volta_fn.nn.classification_losses import check_classes, class_labels, pick
from volta_fn.nn.layers.arguments import check_features, check_sizes, is_integer, uniform_by_fan
from volta_fn.nn.layers.containers import Sequential
from volta_fn.nn.module import Module, static
from volta_fn.nn.quantized_array import WeightArray
from volta_fn.numpy.arguments import wide_index
from volta_fn.primitives.array_operations.array_indexing import check_indices
from volta_fn.primitives.call import stop_gradient
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["MLP", "AdaptiveLogSoftmaxOutput", "AdaptiveLogSoftmaxWithLoss", "Bilinear", "Embedding", "Linear"]


# Linear and bilinear layers, and embeddings.


class Linear(Module):
    """x @ weight + bias, over the last axis.

    `weight` has shape (in_features, out_features), `bias` (out_features,) or None. The weight may be quantised (`nn.quantize`).

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
        product = value @ self.weight
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
    a vector of NaN, or with VOLTA_CHECK_INDICES=1 raises, too. Negative numbers, which data have for padding, are outside, as in PyTorch;
    those of `numpy.take` count from the end.

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
            raise DTypeError(f"Embedding: indices are integers, got {numbers.aval}; convert them with x.astype('int32')")
        weight = self.weight
        size = weight.shape[0]
        message = f"Embedding: index {{}} is out of bounds for a table of {size} vectors, numbered from 0; replace numbers that stand for "
        check_indices(numbers, 0, size, f"{message}padding by padding_idx")
        is_inside = is_concrete(numbers)  # known indices have been checked
        if isinstance(weight, WeightArray):
            return weight.take(numbers if is_inside else _without_negatives(numbers, size))
        if self.padding_idx is not None:
            row = stop_gradient(weight[self.padding_idx])
            weight = weight.at[self.padding_idx].set(row)
        return vnp.take(weight, numbers, axis=0) if is_inside else weight.at[numbers].get(mode="fill", wrap_negative_indices=False)

    def attend(self, x: Any) -> Array:
        """Return x @ weightᵀ, for an output layer that shares the table."""
        value = as_value(x)
        check_features("Embedding.attend", value, self.weight.shape[1])
        return value @ self.weight.T


def _without_negatives(indices: Array, size: int) -> Array:
    """Return indices of so many rows, those below 0 beyond the end."""
    wide = wide_index(indices, size)
    return vnp.where(wide < 0, size, wide)


# Multi-layer perceptrons.

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


# The adaptive softmax, for many classes of unequal frequency.


class AdaptiveLogSoftmaxOutput(NamedTuple):
    """Log-probabilities of the labels, and minus their mean."""

    output: Array
    loss: Array


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log-probabilities of many classes, rare ones through fewer features.

    Classes are in the order of their frequency, the most frequent first, and `cutoffs` divides them into clusters (Grave et al. 2017). The
    head scores the classes before the first cutoff and one more for each other cluster, whose classes a pair of linear layers scores from
    fewer features. Shapes do not depend on labels, so that every cluster is computed for every example: the layer saves parameters, and
    less time than where only the labels' clusters are computed.

    >>> layer = nn.AdaptiveLogSoftmaxWithLoss.init(vf.random.key(0), 8, 20, cutoffs=[4, 10], div_value=2.0)
    >>> output, loss = layer(jnp.ones((3, 8)), jnp.array([0, 7, 19]))
    >>> output.shape, loss.shape
    ((3,), ())
    >>> jnp.exp(layer.log_prob(jnp.ones(8))).sum().round(5)
    Array(1., dtype=float32)
    """

    head: Linear
    tail: tuple[Sequential, ...]
    cutoffs: tuple[int, ...] = static()  # the last one is the number of classes

    @classmethod
    def init(
        cls,
        key: Any,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        *,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with weights uniform as those of `Linear`.

        Args:
            key: for the weights.
            in_features: the size of the inputs' last axis.
            n_classes: how many classes there are.
            cutoffs: the first class of each cluster but the head, ascending, from 1 to n_classes - 1.
            div_value: cluster i, from 1, scores from in_features / div_valueⁱ features, rounded down.
            head_bias: whether the head has a bias.
            dtype: the weights'.

        Raises `ArgumentError` for other arguments.
        """
        check_sizes(cls.__name__, in_features=in_features, n_classes=n_classes)
        bounds = (*cutoffs, n_classes)
        if not cutoffs or not all(is_integer(cut, 1) for cut in cutoffs) or any(b <= a for a, b in itertools.pairwise(bounds)):
            raise ArgumentError(f"{cls.__name__}: cutoffs are ascending integers from 1 to {n_classes - 1}, got {list(cutoffs)}")
        if not div_value > 0:
            raise ArgumentError(f"{cls.__name__}: div_value is positive, got {div_value!r}")
        for_head, *keys = random.split(key, len(bounds))
        head = Linear.init(for_head, in_features, bounds[0] + len(cutoffs), bias=head_bias, dtype=dtype)
        tail = []
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            reduce, classify = random.split(keys[i])
            features = int(in_features // div_value ** (i + 1))
            narrow = Linear.init(reduce, in_features, features, bias=False, dtype=dtype)
            tail.append(Sequential(narrow, Linear.init(classify, features, high - low, bias=False, dtype=dtype)))
        return cls(head, tuple(tail), bounds)

    def __call__(self, x: Any, target: Any) -> AdaptiveLogSoftmaxOutput:
        """Return the log-probabilities of the labels, and the loss: minus their mean.

        Args:
            x: features, of shape (…, in_features).
            target: class numbers, of shape (…). A known one that is no class raises; in a compiled program it gives NaN, or with
                VOLTA_CHECK_INDICES=1 raises, too.

        Raises:
            ShapeError: the shapes do not fit. DTypeError: labels that are not integers. OutOfBoundsError: a known label that is no class.
        """
        name = type(self).__name__
        scores = self.log_prob(x)
        labels = class_labels(name, target, scores.shape, scores.ndim - 1)
        check_classes(name, labels, self.cutoffs[-1])
        score, factor = pick(scores, labels, scores.ndim - 1)
        output = score * factor
        wide = output.astype(accumulator(output.dtype))
        return AdaptiveLogSoftmaxOutput(output, -vnp.mean(wide).astype(output.dtype))

    def log_prob(self, x: Any) -> Array:
        """Return the log-probabilities of all classes, of shape (…, n_classes).

        Raises `ShapeError` unless the last axis of `x` has size in_features.
        """
        value = as_value(x)
        head = log_softmax(self.head(value))
        first = self.cutoffs[0]
        clusters = [log_softmax(layer(value)) + head[..., first + i, None] for i, layer in enumerate(self.tail)]
        return vnp.concatenate([head[..., :first], *clusters], -1)

    def predict(self, x: Any) -> Array:
        """Return the most probable classes, of shape (…).

        Raises `ShapeError` unless the last axis of `x` has size in_features.
        """
        return vnp.argmax(self.log_prob(x), -1)
