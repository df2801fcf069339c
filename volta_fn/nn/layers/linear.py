"""Layers that are linear in their weights: dense ones, and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.core.trace import is_concrete
from volta_fn.dtypes import INTEGERS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.activations import identity, relu
from volta_fn.nn.classification_losses import check_classes, class_labels, pick
from volta_fn.nn.layers.arguments import (
    SpatialLayer,
    batched_input,
    canonical_pads,
    check_features,
    check_sizes,
    is_integer,
    per_axis,
    uniform_by_fan,
)
from volta_fn.nn.layers.containers import Sequential
from volta_fn.nn.module import Module, static
from volta_fn.nn.quantized_array import QuantizedArray, WeightArray
from volta_fn.numpy.arguments import wide_index
from volta_fn.primitives.array_operations.array_indexing import check_indices
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.convolution import Ints, Padding, dilated, padtype_to_pads
from volta_fn.scipy.special.exponential import log_softmax

__all__ = [
    "MLP", "AdaptiveLogSoftmaxOutput", "AdaptiveLogSoftmaxWithLoss", "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "Embedding", "Linear",
]  # fmt: skip


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


# Convolutions with one, two and three spatial axes.
#
# Arrays have shape (batch, channels, *spatial), weights (out, in / groups, *kernel), as in PyTorch.

#: Padding modes, and the corresponding modes of `numpy.pad`.
_PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class ConvBase(SpatialLayer):
    """Base of convolutions and transposed convolutions."""

    weight: Array
    bias: Array | None = None
    stride: Ints = static(default=1)  # stride, padding and dilation also accept the shorter forms of `init`
    padding: str | Padding = static(default=0)
    dilation: Ints = static(default=1)
    groups: int = static(default=1)

    _transposed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name, rank = type(self).__name__, self._rank
        self.__dict__.update(
            stride=per_axis(name, "stride", self.stride, rank),
            padding=canonical_pads(name, self.padding, rank),
            dilation=per_axis(name, "dilation", self.dilation, rank),
        )
        if not is_integer(self.groups, 1):
            raise ArgumentError(f"{name}: groups is an integer of at least 1, got {self.groups!r}")
        super().__post_init__()
        if len(self.weight.shape) != rank + 2:
            raise ShapeError(f"{name}: the weight has {rank + 2} axes, channels and {rank} of the kernel, got shape {self.weight.shape}")

    @classmethod
    def _weights(
        cls, key: Any, in_channels: int, out_channels: int, groups: int, kernel_size: Any, bias: bool, dtype: Any
    ) -> tuple[Array, Array | None]:
        """Draw weight and bias, after a check of the channels."""
        check_sizes(cls.__name__, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if groups == 0 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{cls.__name__}: in_channels={in_channels} and out_channels={out_channels} are no multiples of groups={groups}"
            )
        kernel = per_axis(cls.__name__, "kernel_size", kernel_size, cls._rank)
        first, second = (in_channels, out_channels // groups) if cls._transposed else (out_channels, in_channels // groups)
        fan = second * math.prod(kernel)
        for_weight, for_bias = random.split(key)
        weight = uniform_by_fan(for_weight, (first, second, *kernel), fan, dtype)
        return weight, uniform_by_fan(for_bias, (out_channels,), fan, dtype) if bias else None

    def _input(self, x: Any, channels: int) -> Array:
        value = batched_input(type(self).__name__, x, (self._rank,))
        if value.shape[1] != channels:
            last = value.ndim - 1
            moved = f". Channels come before space here: x.transpose{(0, last, *range(1, last))}" if value.shape[-1] == channels else ""
            raise ShapeError(f"{type(self).__name__}: the input needs {channels} channels along axis 1, got shape {value.shape}{moved}")
        return value

    def _with_bias(self, out: Array) -> Array:
        return out if self.bias is None else out + self.bias.reshape(-1, *[1] * self._rank)


class _Conv(ConvBase):
    padding_mode: str = static(default="zeros")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option(self.padding_mode, f"{type(self).__name__}: padding_mode", _PADDING_MODES)

    @classmethod
    def init(
        cls,
        key: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[Any, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with weights and biases uniform between ±1/√fan_in.

        fan_in is in_channels / groups times the number of elements of the kernel.

        Args:
            key: a random key.
            in_channels: size of the input's axis 1.
            out_channels: size of the output's axis 1.
            kernel_size: of each spatial axis, or of all.
            stride: from one window to the next, likewise.
            padding: on both sides of each spatial axis, as a number, a number per axis or a (low, high) pair per axis; "valid" is no
                padding; "same" makes the output's sizes ceil(size / stride), with an odd element at the high end.
            dilation: from one element of the kernel to the next.
            groups: the number of groups of channels, which are convolved separately.
            bias: whether to add a bias.
            padding_mode: the values of the padding: "zeros", "reflect", "replicate" or "circular".
            dtype: of the parameters.

        Raises `ArgumentError` for other arguments.
        """
        weight, offset = cls._weights(key, in_channels, out_channels, groups, kernel_size, bias, dtype)
        geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return cls(weight, offset, **geometry, padding_mode=padding_mode)

    def __call__(self, x: Any) -> Array:
        """Return the convolution, of shape (N, out_channels, *spatial).

        Raises `ShapeError` for other axes or channels than the layer's.
        """
        value = self._input(x, self.weight.shape[1] * self.groups)
        pads = self._pads(value.shape[2:])
        if self.padding_mode != "zeros":
            value = vnp.pad(value, ((0, 0), (0, 0), *pads), _PADDING_MODES[self.padding_mode])
            pads = ((0, 0),) * self._rank
        weight = self.weight.dequantize(value.dtype) if isinstance(self.weight, QuantizedArray) else self.weight
        out = lax.conv_general_dilated(value, weight, self.stride, pads, rhs_dilation=self.dilation, feature_group_count=self.groups)
        return self._with_bias(out)

    def _pads(self, sizes: tuple[int, ...]) -> Padding:
        reach = tuple(map(dilated, self.weight.shape[2:], self.dilation))
        pads = tuple(padtype_to_pads(sizes, reach, self.stride, self.padding))
        for axis, (size, taps, (low, high)) in enumerate(zip(sizes, reach, pads, strict=True)):
            if low + size + high < taps:
                raise ShapeError(
                    f"{type(self).__name__}: the kernel reaches over {taps} elements of spatial axis {axis}, "
                    f"where the padded input has {low} + {size} + {high}; pad more"
                )
        return pads


class Conv1d(_Conv, rank=1):
    """Convolution of (N, C, L).

    `weight` has shape (out_channels, in_channels / groups, kernel), `bias` (out_channels,) or None.

    >>> conv = vf.nn.Conv1d.init(vf.random.key(0), 3, 8, 5, padding="same")
    >>> conv(vf.numpy.ones((2, 3, 100))).shape
    (2, 8, 100)
    """


class Conv2d(_Conv, rank=2):
    """Convolution of (N, C, H, W).

    `weight` has shape (out_channels, in_channels / groups, kH, kW), `bias` (out_channels,) or None.

    >>> conv = vf.nn.Conv2d.init(vf.random.key(0), 3, 8, 3, stride=2, padding=1)
    >>> conv(vf.numpy.ones((2, 3, 32, 32))).shape
    (2, 8, 16, 16)
    """


class Conv3d(_Conv, rank=3):
    """Convolution of (N, C, D, H, W).

    `weight` has shape (out_channels, in_channels / groups, kD, kH, kW).

    >>> conv = vf.nn.Conv3d.init(vf.random.key(0), 3, 8, (1, 3, 3))
    >>> conv(vf.numpy.ones((2, 3, 4, 8, 8))).shape
    (2, 8, 4, 6, 6)
    """


# Transposed convolutions: the linear maps of convolutions' input gradients.


class _ConvTranspose(ConvBase):
    output_padding: Ints = static(default=0)

    _transposed = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        extra = per_axis(name, "output_padding", self.output_padding, self._rank, 0)
        self.__dict__["output_padding"] = extra
        super().__post_init__()
        if self.padding == "same" and any(extra):
            raise ArgumentError(f'{name}: padding="same" settles the output sizes: it goes without output_padding, got {extra}')
        if any(more >= max(steps) for more, *steps in zip(extra, self.stride, self.dilation, strict=True)):
            raise ArgumentError(f"{name}: output_padding={extra} must be less than stride={self.stride} or dilation={self.dilation}")

    @classmethod
    def init(
        cls,
        key: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] = 1,
        padding: int | str | tuple[Any, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = "float32",
    ) -> Self:
        """Create the layer with weights and biases uniform between ±1/√fan.

        As in PyTorch, fan is out_channels / groups times the number of elements of the kernel.

        Args:
            key, in_channels, out_channels, kernel_size, dilation, groups, bias, dtype: as for `Conv2d`.
            stride: the distance of the input's elements in the output.
            padding: how much the output is cropped on both sides, as a number, a number per axis or a (low, high) pair per axis: the
                padding of the convolution that this one inverts; "valid" crops nothing, "same" makes the output's sizes size * stride.
            output_padding: elements added at the high end, fewer than stride or dilation: selects one of the output sizes that the inverted
                convolution maps to the same size.

        Raises `ArgumentError` for other arguments.
        """
        weight, offset = cls._weights(key, in_channels, out_channels, groups, kernel_size, bias, dtype)
        geometry: dict[str, Any] = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
        return cls(weight, offset, **geometry, groups=groups)

    def __call__(self, x: Any) -> Array:
        """Return the transposed convolution, of shape (N, out_channels, *spatial).

        The sizes are (size - 1) stride - padding + reach + output_padding, where the kernel's reach is (kernel - 1) dilation + 1.
        Raises `ShapeError` for other axes or channels than the layer's, and where nothing would be left.
        """
        value = self._input(x, self.weight.shape[0])
        out = lax.conv_general_dilated(
            value,
            self._kernel(),
            (1,) * self._rank,
            self._pads(value.shape[2:]),
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            feature_group_count=self.groups,
        )
        return self._with_bias(out)

    def _kernel(self) -> Array:
        """Return the weight of the ordinary convolution: groups swapped, kernel flipped."""
        into, out, *kernel = self.weight.shape
        grouped = self.weight.reshape(self.groups, into // self.groups, out, *kernel)
        swapped = grouped.swapaxes(1, 2).reshape(self.groups * out, into // self.groups, *kernel)
        return lax.rev(swapped, range(2, swapped.ndim))

    def _pads(self, sizes: Ints) -> Padding:
        """Return by how much the dilated input is padded or (if negative) cropped."""
        reach = tuple(map(dilated, self.weight.shape[2:], self.dilation))
        out_sizes = [size * stride for size, stride in zip(sizes, self.stride, strict=True)]
        cuts = padtype_to_pads(out_sizes, reach, self.stride, self.padding)
        extra = self.output_padding
        if self.padding == "same":  # a kernel shorter than the stride leaves gaps, and the output includes the last one
            extra = tuple([max(stride - taps, 0) for taps, stride in zip(reach, self.stride, strict=True)])
        pads = []
        for axis, (size, stride, taps, (low, high), more) in enumerate(zip(sizes, self.stride, reach, cuts, extra, strict=True)):
            if (size - 1) * stride + taps + more <= low + high:
                raise ShapeError(
                    f"{type(self).__name__}: padding {(low, high)} leaves no output of {size} elements along spatial axis {axis}; pad less"
                )
            pads.append((taps - 1 - low, taps - 1 - high + more))
        return tuple(pads)


class ConvTranspose1d(_ConvTranspose, rank=1):
    """Transposed convolution of (N, C, L).

    `weight` has shape (in_channels, out_channels / groups, kernel).

    >>> conv = vf.nn.ConvTranspose1d.init(vf.random.key(0), 8, 3, 4, stride=4)
    >>> conv(vf.numpy.ones((2, 8, 25))).shape
    (2, 3, 100)
    """


class ConvTranspose2d(_ConvTranspose, rank=2):
    """Transposed convolution of (N, C, H, W).

    `weight` has shape (in_channels, out_channels / groups, kH, kW).

    >>> conv = vf.nn.ConvTranspose2d.init(vf.random.key(0), 8, 3, 3, stride=2, padding=1, output_padding=1)
    >>> conv(vf.numpy.ones((2, 8, 16, 16))).shape
    (2, 3, 32, 32)
    """


class ConvTranspose3d(_ConvTranspose, rank=3):
    """Transposed convolution of (N, C, D, H, W).

    `weight` has shape (in_channels, out_channels / groups, kD, kH, kW).

    >>> conv = vf.nn.ConvTranspose3d.init(vf.random.key(0), 8, 3, 2, stride=2)
    >>> conv(vf.numpy.ones((2, 8, 2, 4, 4))).shape
    (2, 3, 4, 8, 8)
    """
