"""PyTorch on CUDA in true float32: times of products and convolutions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from typing import Any

#: Seconds that a measurement takes, about, and how many are made.
_SAMPLE, _SAMPLES = 0.004, 4


@cache
def torch() -> Any:
    """Return PyTorch without TF32, or None without PyTorch or CUDA."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    return torch


def product(sizes: tuple[int, int, int, int], layout: str) -> Callable[[], float]:
    """Return a timer of products (batch, m, n, k), transposed where the layout has T.

    It gives NaN without CUDA.
    """
    library = torch()
    if library is None:
        return lambda: float("nan")
    batch, m, n, k = sizes
    left = library.randn((batch, m, k) if layout[0] == "N" else (batch, k, m), device="cuda")
    right = library.randn((batch, k, n) if layout[1] == "N" else (batch, n, k), device="cuda")
    a = left if layout[0] == "N" else left.transpose(1, 2)
    b = right if layout[1] == "N" else right.transpose(1, 2)
    out = library.empty((batch, m, n), device="cuda")
    if batch == 1:
        return timer(lambda: library.mm(a[0], b[0], out=out[0]))
    return timer(lambda: library.bmm(a, b, out=out))


def convolution(shape: Any, number: int) -> Callable[[], Any] | None:
    """Return a function that begins a convolution or a gradient; None without CUDA."""
    library = torch()
    if library is None:
        return None
    x = library.randn((shape.n, shape.channels, shape.size, shape.size), device="cuda")
    w = library.randn((shape.outputs, shape.channels // shape.groups, shape.taps, shape.taps), device="cuda")
    same, stride = [shape.taps // 2] * 2, [shape.stride] * 2

    def forward() -> Any:
        return library.nn.functional.conv2d(x, w, None, stride, same, 1, shape.groups)

    if number == 0:
        return forward
    y, wanted = library.randn_like(forward()), [number == 1, number == 2, False]
    backward = library.ops.aten.convolution_backward
    return lambda: backward(y, x, w, None, stride, same, [1, 1], False, [0, 0], shape.groups, wanted)


def seconds(call: Callable[[], Any]) -> float:
    """Return the device's least time for a call, where many follow one another."""
    return timer(call)()


def timer(call: Callable[[], Any]) -> Callable[[], float]:
    """Return a function that measures that, by a CUDA graph of many calls if possible."""
    library = torch()
    for _ in range(3):
        call()
    library.cuda.synchronize()
    times = int(min(200, max(3, _SAMPLE / (_elapsed(call, 3) / 3))))
    try:
        graph = library.cuda.CUDAGraph()
        with library.cuda.graph(graph):
            for _ in range(times):
                call()
        graph.replay()
    except RuntimeError:
        return lambda: min(_elapsed(call, times) for _ in range(_SAMPLES)) / times
    return partial(_replayed, graph, times, call)


def _replayed(graph: Any, times: int, call: Callable[[], Any]) -> float:
    """Return the time of one of a graph's calls; `call` keeps alive what they read."""
    return min(_elapsed(graph.replay, 1) for _ in range(_SAMPLES)) / times


def _elapsed(call: Callable[[], Any], times: int) -> float:
    library = torch()
    start, end = library.cuda.Event(enable_timing=True), library.cuda.Event(enable_timing=True)
    library.cuda.synchronize()
    start.record()
    for _ in range(times):
        call()
    end.record()
    library.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3
