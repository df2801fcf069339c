"""Convolutions of images, forward and both gradients, of common kinds and sizes.

Every common kind at one size, and one kind over batch, channels, image and kernel size. Images are laid out (batch, channels, rows,
columns), kernels (outputs, inputs, rows, columns), which all three frameworks take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal

LAYOUT = ("NCHW", "OIHW", "NCHW")


@dataclass(frozen=True)
class Kind:
    """A kind of convolution; its padding keeps the image's size at stride 1."""

    taps: int
    stride: int = 1
    dilation: int = 1
    depthwise: bool = False
    transposed: bool = False

    @property
    def padding(self) -> int:
        """Zeros on each side, as PyTorch counts them."""
        return (self.taps - 1) * self.dilation // 2

    def kernel_shape(self, channels: int, outputs: int) -> tuple[int, ...]:
        """Return the weights' shape; a transposed convolution has those it transposes."""
        inputs = 1 if self.depthwise else channels
        return ((channels, outputs) if self.transposed else (outputs, inputs)) + (self.taps, self.taps)

    def functional(self, lib: Library) -> Callable[[Any, Any], Any]:
        """Return the convolution in JAX's terms."""
        if self.transposed:
            border = [(self.taps - 1 - self.padding,) * 2] * 2
            return lambda x, w: lib.lax.conv_transpose(x, w, (self.stride,) * 2, border, dimension_numbers=LAYOUT, transpose_kernel=True)
        return lambda x, w: lib.lax.conv_general_dilated(
            x,
            w,
            window_strides=(self.stride,) * 2,
            padding=[(self.padding,) * 2] * 2,
            rhs_dilation=(self.dilation,) * 2,
            dimension_numbers=LAYOUT,
            feature_group_count=x.shape[1] if self.depthwise else 1,
        )

    def torch_arguments(self, x: Any) -> tuple[Any, ...]:
        """Return stride, padding, dilation, transposed, output padding and groups."""
        strides, paddings, dilations = [self.stride] * 2, [self.padding] * 2, [self.dilation] * 2
        return strides, paddings, dilations, self.transposed, [0, 0], x.shape[1] if self.depthwise else 1

    def side_after(self, side: int) -> int:
        """Return the size of the resulting image."""
        if self.transposed:
            return (side - 1) * self.stride + self.taps - 2 * self.padding
        return (side + 2 * self.padding - (self.taps - 1) * self.dilation - 1) // self.stride + 1


def forward(rng: np.random.Generator, kind: Kind, batch: int, channels: int, outputs: int, side: int) -> Case:
    """Convolve."""
    return Case(
        (normal(rng, batch, channels, side, side), normal(rng, *kind.kernel_shape(channels, outputs), scale=0.1)),
        kind.functional,
        lambda torch, x, w: lambda: torch.ops.aten.convolution(x, w, None, *kind.torch_arguments(x)),
    )


def gradients(rng: np.random.Generator, kind: Kind, batch: int, channels: int, outputs: int, side: int) -> Case:
    """Return the cotangents of image and kernel from that of the result."""
    after = kind.side_after(side)
    ct = normal(rng, batch, outputs, after, after)
    inputs = forward(rng, kind, batch, channels, outputs, side).inputs

    def torch_work(torch: Any, ct: Any, x: Any, w: Any) -> Callable[[], Any]:
        arguments = kind.torch_arguments(x)
        return lambda: torch.ops.aten.convolution_backward(ct, x, w, None, *arguments, [True, True, False])[:2]

    return Case((ct, *inputs), lambda lib: lambda ct, x, w: lib.jax.vjp(kind.functional(lib), x, w)[1](ct), torch_work)


def _sizes(batch: int, channels: int, outputs: int, side: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "outputs": outputs, "side": side}


KINDS = {
    "1×1": (Kind(1), _sizes(8, 256, 64, 56)),
    "3×3": (Kind(3), _sizes(8, 64, 64, 56)),
    "3×3 deep": (Kind(3), _sizes(8, 256, 256, 14)),
    "3×3 stride 2": (Kind(3, stride=2), _sizes(8, 64, 128, 56)),
    "5×5": (Kind(5), _sizes(8, 32, 64, 28)),
    "7×7 stride 2": (Kind(7, stride=2), _sizes(8, 3, 64, 224)),
    "depthwise 3×3": (Kind(3, depthwise=True), _sizes(8, 128, 128, 56)),
    "dilated 3×3": (Kind(3, dilation=2), _sizes(8, 64, 64, 28)),
    "transposed 4×4": (Kind(4, stride=2, transposed=True), _sizes(8, 64, 32, 28)),
}

# One convolution (batch 8, 32 → 32 channels, 32×32 pixels, 3×3 taps), one of its sizes changed at a time.
BASE = _sizes(8, 32, 32, 32)
SUITE = {
    **{f"batch {n}": (Kind(3), BASE | {"batch": n}) for n in (1, 4, 16, 64)},
    **{f"{n} channels": (Kind(3), BASE | {"channels": n, "outputs": n}) for n in (1, 8, 64, 256)},
    **{f"image {n}×{n}": (Kind(3), BASE | {"side": n}) for n in (8, 16, 64, 128)},
    **{f"kernel {n}×{n}": (Kind(n), BASE) for n in (1, 5, 7, 11)},
}


def _quick(kind: Kind) -> dict[str, int]:
    return _sizes(2, 4, 4, 9) if kind.depthwise else _sizes(2, 3, 4, 9)


WORKLOADS = [
    *(
        Workload(f"conv/{name} {run.__name__}", run, {"kind": kind} | sizes, _quick(kind))
        for name, (kind, sizes) in KINDS.items()
        for run in (forward, gradients)
    ),
    *(Workload(f"conv size/{name}", forward, {"kind": kind} | sizes, _quick(kind)) for name, (kind, sizes) in SUITE.items()),
]
