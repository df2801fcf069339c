"""Transposed convolutions: the linear maps of convolutions' input gradients."""

from __future__ import annotations

from typing import Any, Self

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import per_axis
from volta_fn.nn.layers.conv import ConvBase
from volta_fn.nn.module import static
from volta_fn.primitives.geometry import Ints, Padding, dilated, padtype_to_pads

__all__ = ["ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _ConvTranspose(ConvBase):
    output_padding: Ints = static(default=0)

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
        cls._check_channels(in_channels, out_channels, groups)
        weight, offset = cls._weights(key, (in_channels, out_channels // groups, out_channels), kernel_size, bias, dtype)
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
        wanted = [size * stride for size, stride in zip(sizes, self.stride, strict=True)]
        cuts = padtype_to_pads(wanted, reach, self.stride, self.padding)
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


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution of (N, C, L).

    `weight` has shape (in_channels, out_channels / groups, kernel).

    >>> conv = vf.nn.ConvTranspose1d.init(vf.random.key(0), 8, 3, 4, stride=4)
    >>> conv(vf.numpy.ones((2, 8, 25))).shape
    (2, 3, 100)
    """

    _rank = 1


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution of (N, C, H, W).

    `weight` has shape (in_channels, out_channels / groups, kH, kW).

    >>> conv = vf.nn.ConvTranspose2d.init(vf.random.key(0), 8, 3, 3, stride=2, padding=1, output_padding=1)
    >>> conv(vf.numpy.ones((2, 8, 16, 16))).shape
    (2, 3, 32, 32)
    """

    _rank = 2


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution of (N, C, D, H, W).

    `weight` has shape (in_channels, out_channels / groups, kD, kH, kW).

    >>> conv = vf.nn.ConvTranspose3d.init(vf.random.key(0), 8, 3, 2, stride=2)
    >>> conv(vf.numpy.ones((2, 8, 2, 4, 4))).shape
    (2, 3, 4, 8, 8)
    """

    _rank = 3
