"""The adaptive softmax, for many classes of unequal frequency."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError
from volta_fn.nn.layers.common import check_sizes, is_integer
from volta_fn.nn.layers.containers import Sequential
from volta_fn.nn.layers.linear import Linear
from volta_fn.nn.losses.common import check_classes, class_labels, pick
from volta_fn.nn.module import Module, static
from volta_fn.scipy.special.exponential import log_softmax

__all__ = ["AdaptiveLogSoftmaxOutput", "AdaptiveLogSoftmaxWithLoss"]


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
        score, known = pick(scores, labels, scores.ndim - 1)
        output = score * known
        wide = output.astype(accumulator(output.dtype))
        return AdaptiveLogSoftmaxOutput(output, -vnp.mean(wide).astype(output.dtype))

    def log_prob(self, x: Any) -> Array:
        """Return the log-probabilities of all classes, of shape (…, n_classes).

        Raises `ShapeError` unless the last axis of `x` has size in_features.
        """
        value = as_value(x)
        head = _log_softmax(self.head(value))
        first = self.cutoffs[0]
        clusters = [_log_softmax(layer(value)) + head[..., first + i, None] for i, layer in enumerate(self.tail)]
        return vnp.concatenate([head[..., :first], *clusters], -1)

    def predict(self, x: Any) -> Array:
        """Return the most probable classes, of shape (…).

        Raises `ShapeError` unless the last axis of `x` has size in_features.
        """
        return vnp.argmax(self.log_prob(x), -1)


def _log_softmax(x: Array) -> Array:
    return log_softmax(x.astype(accumulator(x.dtype)), -1).astype(x.dtype)
