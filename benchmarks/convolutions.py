"""Convolutions of bfloat16 and bytes beside those of float32 and PyTorch's.

    python -m benchmarks.convolutions              # the layers of ResNet-18, 8 images
    python -m benchmarks.convolutions --images 1   # another number of images
    python -m benchmarks.convolutions --quick      # small, a few repetitions: everything runs

Times are processor time of one thread, the least of several calls, all kinds by turns; printed are ratios to our bfloat16's time in the
same run: more than 1 is slower. The gradients are those of bfloat16, by the input and by the weights.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import volta_fn as vf
from benchmarks.quantization import least_times
from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.lazy_imports import is_installed

Calls = dict[str, Callable[[], Any]]


class Layer(NamedTuple):
    """A convolution of square images by square windows."""

    channels: int
    outputs: int
    size: int
    taps: int
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> int:
        """The padding on each side."""
        return self.taps // 2

    def __str__(self) -> str:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{self.channels} → {self.outputs}, {self.size}², {self.taps}×{self.taps} by {self.stride}{groups}"


#: ResNet-18's layers, and two of MobileNet's.
LAYERS = [
    Layer(3, 64, 224, 7, 2),
    Layer(64, 64, 56, 3),
    Layer(64, 128, 56, 3, 2),
    Layer(64, 128, 56, 1, 2),
    Layer(128, 128, 28, 3),
    Layer(256, 256, 14, 3),
    Layer(256, 512, 14, 3, 2),
    Layer(512, 512, 7, 3),
    Layer(96, 24, 56, 1),
    Layer(96, 96, 56, 3, 1, 96),
]


def convolve(layer: Layer, x: Any, w: Any, dtype: Any = None) -> Any:
    """Return the layer's convolution."""
    pads = [(layer.padding, layer.padding)] * 2
    strides = (layer.stride, layer.stride)
    return lax.conv_general_dilated(x, w, strides, pads, feature_group_count=layer.groups, preferred_element_type=dtype)


def our_calls(layer: Layer, x: np.ndarray, w: np.ndarray) -> dict[str, Calls]:
    """Return the calls of each operation, by kind."""

    def timed(f: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
        compiled, operands = vf.jit(f), [vnp.asarray(a) for a in arrays]
        return lambda: compiled(*operands).block_until_ready()

    def forward(x: Any, w: Any) -> Any:
        return convolve(layer, x, w)

    def gradient(number: int) -> Callable[..., Any]:
        return lambda x, w, ct: vf.vjp(forward, x, w)[1](ct)[number]

    calls: dict[str, Calls] = {"forward": {}, "by the input": {}, "by the weights": {}}
    for name, dtype in {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}.items():
        operands = x.astype(dtype), w.astype(dtype)
        ct = np.asarray(vf.jit(forward)(*operands))
        calls["forward"][name] = timed(forward, *operands)
        calls["by the input"][name] = timed(gradient(0), *operands, ct)
        calls["by the weights"][name] = timed(gradient(1), *operands, ct)
    codes = [np.clip(a * 40, -127, 127).astype(np.int8) for a in (x, w)]
    calls["forward"]["int8"] = timed(lambda x, w: convolve(layer, x, w, np.int32), *codes)
    return calls


def add_torch(calls: dict[str, Calls], layer: Layer, x: np.ndarray, w: np.ndarray) -> None:
    """Add PyTorch's calls in bfloat16, if it is installed."""
    if not is_installed("torch"):
        return
    import torch

    torch.set_num_threads(1)
    images, weights = torch.tensor(x).bfloat16(), torch.tensor(w).bfloat16()
    stride, padding = [layer.stride] * 2, [layer.padding] * 2
    forward = torch.nn.functional.conv2d

    def run() -> Any:
        with torch.no_grad():
            return forward(images, weights, None, layer.stride, layer.padding, 1, layer.groups)

    ct = run()

    def gradient(wanted: list[bool]) -> Callable[[], Any]:
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(ct, images, weights, None, stride, padding, [1, 1], False, [0, 0], layer.groups, wanted)

    calls["forward"]["PyTorch"] = run
    calls["by the input"]["PyTorch"] = gradient([True, False, False])
    calls["by the weights"]["PyTorch"] = gradient([False, True, False])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--layers", type=int, nargs="*", default=list(range(len(LAYERS))))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    layers, images, repetitions = [LAYERS[k] for k in arguments.layers], arguments.images, arguments.repetitions
    if arguments.quick:
        layers, images, repetitions = [Layer(16, 32, 10, 3), Layer(8, 8, 9, 3, 1, 8)], 2, 2
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    rng = np.random.default_rng(0)
    for layer in layers:
        x = rng.normal(size=(images, layer.channels, layer.size, layer.size)).astype(np.float32)
        shape = (layer.outputs, layer.channels // layer.groups, layer.taps, layer.taps)
        w = (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        calls = our_calls(layer, x, w)
        add_torch(calls, layer, x, w)
        print(layer)
        for operation, by_kind in calls.items():
            times = least_times(by_kind, repetitions)
            ratios = ", ".join(f"{name} {seconds / times['bfloat16']:.2f}" for name, seconds in times.items() if name != "bfloat16")
            print(f"  {operation:<15} {times['bfloat16'] * 1e3:7.2f} ms; {ratios}", flush=True)


if __name__ == "__main__":
    main()
