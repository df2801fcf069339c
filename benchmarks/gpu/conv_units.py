"""Check and time convolutions on matrix units.

Run `python -m benchmarks.gpu.conv_units`. First it runs convolutions and both of their gradients, and compares the results with those in
float64. Then it times layers of ResNets, U-Nets and small networks in bfloat16 and TensorFloat-32, with channels last and first, in
alternation with cuDNN by PyTorch, whose arrays have the same layout, and with channels last. Times of each dispatch by itself follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain, repeated, steps_of
from benchmarks.gpu.device import forget_routines, opened_gpu
from benchmarks.gpu.products import BFLOAT16, FLOAT16, FLOAT32, ROUNDED_TOLERANCE, TOLERANCES, alternate, on_matrix_units, relative_error
from benchmarks.gpu.suite import Suite, check_and_time
from volta_fn import lax
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.nvidia import convolution
from volta_fn.targets.nvidia.matmul.problem import AnySchedule, Schedule

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")

#: Passes in a timed chain.
REPEATED = 20

#: The result, and the gradients by the images and by the weights.
PASSES = ("forward", "by images", "by weights")


class Layer(NamedTuple):
    """A convolution of images (batch, channels, height, width).

    Numbers of float32 are rounded to TensorFloat-32.
    """

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    taps: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    last: bool = False
    dtype: np.dtype = BFLOAT16
    #: How many of the passes run on matrix units, at least.
    expected: int = 3

    @property
    def name(self) -> str:
        """Its sizes."""
        extras = (f" /{self.stride[0]}" if self.stride != (1, 1) else "") + (f" g{self.groups}" if self.groups > 1 else "")
        layout = " channels last" if self.last else ""
        image = f"{self.batch}x{self.channels}x{self.height}x{self.width}"
        dtype = "tf32" if self.dtype == FLOAT32 else self.dtype.name
        return f"{dtype} {image} -> {self.outputs} {self.taps[0]}x{self.taps[1]}{extras}{layout}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of images, weights and results."""
        x, w = (self.batch, self.channels, self.height, self.width), (self.outputs, self.channels // self.groups, *self.taps)
        if self.last:
            x, w = (x[0], x[2], x[3], x[1]), (w[2], w[3], w[1], w[0])
        types = [vf.ShapeDtypeStruct(shape, np.float32) for shape in (x, w)]
        return [x, w, vf.eval_shape(self.convolve, *types).shape]

    @property
    def operations(self) -> float:
        """Multiplications and additions of a pass."""
        return 2.0 * np.prod(self.shapes[2]) * np.prod(self.taps) * self.channels / self.groups

    def convolve(self, x: Any, w: Any) -> Any:
        """Return the result."""
        numbers = LAST if self.last else FIRST
        return lax.conv_general_dilated(
            x, w, self.stride, self.padding, rhs_dilation=self.dilation, dimension_numbers=numbers, feature_group_count=self.groups,
            precision="tensorfloat32",
        )  # fmt: skip

    def function(self, number: int) -> Callable[[Any, Any, Any], Any]:
        """Return a pass, of images, weights and cotangents."""
        if number == 0:
            return lambda x, w, ct: self.convolve(x, w)
        if number == 1:
            return lambda x, w, ct: vf.vjp(lambda x: self.convolve(x, w), x)[1](ct)[0]
        return lambda x, w, ct: vf.vjp(lambda w: self.convolve(x, w), w)[1](ct)[0]

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Return random images, weights and cotangents."""
        rng = np.random.default_rng(seed)
        x, w, ct = self.shapes
        scale = (np.prod(self.taps) * self.channels) ** -0.5
        return [(rng.standard_normal(s, np.float32) * f).astype(self.dtype) for s, f in ((x, 1), (w, scale), (ct, 1))]


CHECKS = [
    Layer(8, 64, 16, 16, 64),
    Layer(16, 64, 15, 13, 72),
    Layer(8, 64, 16, 16, 64, dtype=FLOAT16),
    Layer(8, 64, 16, 16, 64, last=True),
    Layer(8, 128, 16, 16, 128, stride=(2, 2)),
    Layer(16, 128, 17, 19, 64, stride=(2, 1), padding=((0, 2), (2, 0)), taps=(2, 3), dilation=(1, 2)),
    Layer(16, 128, 19, 17, 192, taps=(3, 5), padding=((1, 0), (2, 3))),
    Layer(64, 128, 16, 16, 128, taps=(1, 1), padding=((0, 0), (0, 0)), stride=(2, 2)),
    Layer(16, 256, 14, 14, 256, taps=(1, 1), padding=((0, 0), (0, 0))),
    Layer(16, 48, 14, 14, 96, expected=2),
    Layer(16, 128, 14, 14, 128, groups=2),
    Layer(32, 256, 7, 7, 256),
    Layer(64, 512, 4, 4, 512),
    Layer(6, 64, 33, 35, 64, taps=(7, 7), padding=((3, 3), (3, 3))),
    Layer(8, 64, 16, 16, 64, dtype=FLOAT32),
    Layer(16, 64, 15, 13, 72, dtype=FLOAT32),
    Layer(8, 128, 16, 16, 128, stride=(2, 2), dtype=FLOAT32),
    Layer(16, 128, 14, 14, 128, groups=2, dtype=FLOAT32),
    Layer(32, 256, 7, 7, 256, dtype=FLOAT32),
]

ONE: Any = {"taps": (1, 1), "padding": ((0, 0), (0, 0))}
TWO: Any = {"stride": (2, 2)}
COLOURS: Any = {"taps": (7, 7), "padding": ((3, 3), (3, 3)), "stride": (2, 2)}

CHECKS += [
    layer._replace(dtype=dtype, last=last)
    for layer in (
        Layer(8, 64, 28, 28, 256, **ONE),
        Layer(16, 512, 7, 7, 256, expected=2, **ONE),
        Layer(16, 256, 28, 28, 128, **ONE, **TWO),
        Layer(16, 128, 8, 8, 256, groups=2, **ONE, expected=0),
        Layer(64, 32, 28, 28, 64, expected=2),
        Layer(64, 64, 28, 28, 3, expected=1),
        Layer(64, 3, 32, 32, 64, expected=2),
        Layer(16, 3, 64, 64, 64, expected=2, **COLOURS),
        Layer(4, 64, 56, 60, 128, **TWO),
        Layer(32, 512, 7, 7, 512),
    )
    for dtype in (BFLOAT16, FLOAT32)
    for last in (False, True)
]

#: Layers of ResNet-18 for small images, of ResNet-50, of U-Nets, and of small networks.
TIMED = [
    Layer(64, 3, 32, 32, 64),
    Layer(64, 64, 32, 32, 64),
    Layer(64, 64, 32, 32, 128, **TWO),
    Layer(64, 64, 32, 32, 128, **TWO, **ONE),
    Layer(64, 128, 16, 16, 128),
    Layer(64, 128, 16, 16, 256, **TWO),
    Layer(64, 256, 8, 8, 256),
    Layer(64, 256, 8, 8, 512, **TWO),
    Layer(64, 512, 4, 4, 512),
    Layer(32, 3, 224, 224, 64, **COLOURS),
    Layer(32, 64, 56, 56, 64),
    Layer(32, 128, 28, 28, 128),
    Layer(32, 256, 14, 14, 256),
    Layer(32, 512, 7, 7, 512),
    Layer(32, 128, 56, 56, 128, **TWO),
    Layer(32, 512, 14, 14, 512, **TWO),
    Layer(32, 64, 56, 56, 256, **ONE),
    Layer(32, 256, 56, 56, 64, **ONE),
    Layer(32, 512, 28, 28, 128, **ONE),
    Layer(32, 128, 28, 28, 512, **ONE),
    Layer(32, 1024, 14, 14, 256, **ONE),
    Layer(32, 256, 14, 14, 1024, **ONE),
    Layer(32, 2048, 7, 7, 512, **ONE),
    Layer(32, 512, 7, 7, 2048, **ONE),
    Layer(32, 256, 56, 56, 512, **TWO, **ONE),
    Layer(32, 1024, 14, 14, 2048, **TWO, **ONE),
    Layer(8, 64, 128, 128, 64),
    Layer(8, 128, 128, 128, 64),
    Layer(8, 256, 32, 32, 256),
    Layer(8, 1024, 16, 16, 512),
    Layer(128, 32, 28, 28, 64),
    Layer(128, 1, 28, 28, 32),
]
TIMED = [layer._replace(dtype=dtype, last=last) for dtype in (BFLOAT16, FLOAT32) for last in (True, False) for layer in TIMED]


def run_check(layer: Layer) -> bool:
    """Run a check and print its errors; return whether it is right."""
    arrays = layer.arrays()
    errors, count, same = [], 0, True
    for number in range(3):
        function = layer.function(number)
        with vf.default_device("cpu"):
            expected = np.asarray(vf.jit(function)(*[vnp.asarray(x.astype(np.float64)) for x in arrays]))
        operands = [vnp.asarray(x) for x in arrays]
        actual, again = [np.asarray(vf.jit(function)(*operands)) for _ in range(2)]
        errors.append(relative_error(actual, expected))
        same = same and np.array_equal(actual, again)
        count += on_matrix_units(function, arrays) > 0
    right = max(errors) <= (ROUNDED_TOLERANCE if layer.dtype == FLOAT32 else TOLERANCES[layer.dtype])
    verdict = ("" if right else "  WRONG") + ("" if same else "  NOT THE SAME TWICE")
    least = 0 if layer.dtype == FLOAT32 and opened_gpu().capabilities.matrix_units != "wgmma" else layer.expected
    verdict += "" if count >= least else f"  {count} of {least} on matrix units"
    listed = ", ".join(f"{name} {error:.1e}" for name, error in zip(PASSES, errors, strict=True))
    print(f"{layer.name:44s} {count} on matrix units, errors: {listed}{verdict}", flush=True)
    return right and same and count >= least


def timer(layer: Layer, number: int) -> Callable[[], float]:
    """Return a function that times a pass on the device."""
    program, arrays = vf.jit(layer.function(number)), [vnp.asarray(x) for x in layer.arrays()]
    return chain(lambda: program(*arrays), REPEATED)


def dispatch_times(layer: Layer, number: int) -> list[float]:
    """Return the seconds of each of a pass's dispatches by itself."""
    program, arrays = vf.jit(layer.function(number)), [vnp.asarray(x) for x in layer.arrays()]
    steps, kept = steps_of(lambda: program(*arrays))
    assert kept, "memory of the dispatches"
    return [repeated([step], REPEATED) for step in steps]


def peer(layer: Layer, number: int, *, last: bool) -> Callable[[], float]:
    """Return PyTorch's timer of a pass, with channels last or first."""
    torch = peers.torch()
    shape = layer._replace(last=False).shapes
    torch.backends.cudnn.allow_tf32 = layer.dtype == FLOAT32
    dtype = torch.float32 if layer.dtype == FLOAT32 else torch.bfloat16
    layout = torch.channels_last if last else torch.contiguous_format
    x, w, ct = (torch.randn(s, device="cuda").to(dtype).contiguous(memory_format=layout) for s in shape)
    padding = [low for low, _ in layer.padding]
    stride, dilation = [list(each) for each in (layer.stride, layer.dilation)]
    if number == 0:
        return peers.timer(lambda: torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, layer.groups))
    mask = [number == 1, number == 2, False]
    backward = torch.ops.aten.convolution_backward
    return peers.timer(lambda: backward(ct, x, w, None, stride, padding, dilation, False, [0, 0], layer.groups, mask))


def run_timed(layer: Layer) -> None:
    """Time a layer's passes and print the results."""
    for number, name in enumerate(PASSES):
        samplers = {"ours": timer(layer, number)}
        if peers.torch() is not None:
            samplers["cuDNN"] = peer(layer, number, last=layer.last)
            if not layer.last:
                samplers["channels last"] = peer(layer, number, last=True)
        times = alternate(samplers)
        ours = times.pop("ours")
        rate = layer.operations / ours / 1e12
        listed = ", ".join(f"{name} {theirs * 1e6:8.1f} us {theirs / ours:5.2f}" for name, theirs in times.items())
        each = " + ".join(f"{seconds * 1e6:.1f}" for seconds in dispatch_times(layer, number))
        print(f"{layer.name:44s} {name:10s} {ours * 1e6:8.1f} us {rate:5.0f} TFLOP/s; {listed}; {each}", flush=True)


def _only(schedule: AnySchedule, device: TargetCapabilities) -> tuple[AnySchedule, ...]:
    return (schedule,)


def run_schedules(layer: Layer, pattern: str) -> None:
    """Time a layer's passes, those whose names match a pattern, by every schedule."""
    standard, every = convolution.schedules, convolution.schedules(opened_gpu().capabilities)
    for number in [n for n, name in enumerate(PASSES) if re.search(pattern, name)]:
        samplers = {}
        for schedule in every:
            if number == 2 and layer.dtype == FLOAT32 and isinstance(schedule, Schedule) and schedule.turns:
                continue
            convolution.schedules = partial(_only, schedule)
            forget_routines()
            samplers[str(schedule)] = timer(layer, number)
        convolution.schedules = standard
        forget_routines()
        for name, seconds in sorted(alternate(samplers).items(), key=lambda pair: pair[1]):
            print(f"{layer.name:44s} {PASSES[number]:10s} {seconds * 1e6:8.1f} us  {name}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if a result is wrong."""
    return check_and_time("conv_units", __doc__, Suite(CHECKS, TIMED, run_check, run_timed, run_schedules), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
