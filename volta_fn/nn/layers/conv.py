"""Convolutions with one, two and three spatial axes, and transposed ones."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

from volta_fn import lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.arguments import SpatialLayer, batched_input, canonical_pads, check_sizes, is_integer, per_axis, uniform_by_fan
from volta_fn.nn.module import static
from volta_fn.nn.quantized_array import QuantizedArray
from volta_fn.primitives.convolution import Ints, Padding, dilated, padtype_to_pads

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


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
        if self.padding_mode not in _PADDING_MODES:
            raise ArgumentError(f"{type(self).__name__}: padding_mode is one of {list(_PADDING_MODES)}, got {self.padding_mode!r}")

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
            key: a random key.
            in_channels: size of the input's axis 1.
            out_channels: size of the output's axis 1.
            kernel_size: of each spatial axis, or of all.
            stride: the distance of the input's elements in the output.
            padding: how much the output is cropped on both sides, as a number, a number per axis or a (low, high) pair per axis: the
                padding of the convolution that this one inverts; "valid" crops nothing, "same" makes the output's sizes size * stride.
            output_padding: elements added at the high end, fewer than stride or dilation: selects one of the output sizes that the inverted
                convolution maps to the same size.
            dilation: from one element of the kernel to the next.
            groups: the number of groups of channels, which are convolved separately.
            bias: whether to add a bias.
            dtype: of the parameters.

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
