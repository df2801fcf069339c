"""Compare `vision` with torchvision, on one thread of the CPU.

`python -m benchmarks.vision` prints the CPU time of both and their ratio for each function, the least of many calls by turns. Functions
here are jitted. Results that are not torchvision's are an error. `--rounds N`; `--quick` only checks that everything runs. Without
torchvision the times are this package's alone. Set ``VOLTA_NUM_THREADS=1`` for one thread here, too.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
from volta_fn.vision import ops, transforms


class Row(NamedTuple):
    """A function of both libraries; results may differ by `tolerance`."""

    name: str
    function: Callable[..., Any]
    theirs: Callable[[Any, Any], Callable[..., Any]]
    arrays: tuple[np.ndarray, ...]
    tolerance: float


def rows(small: bool) -> list[Row]:
    """Return the functions to time, of sizes that are usual."""
    random = np.random.default_rng(0)
    count, size, batch = (40, 32, 2) if small else (1000, 224, 16)
    corner = random.uniform(0, 500, (count, 2))
    boxes = np.concatenate([corner, corner + random.uniform(5, 100, (count, 2))], 1).astype(np.float32)
    scores = random.uniform(size=count).astype(np.float32)
    maps = random.normal(size=(2, 64, 50, 60)).astype(np.float32)
    regions = np.concatenate([random.integers(0, 2, (count // 4, 1)), boxes[: count // 4] / 10], 1).astype(np.float32)
    images = random.integers(0, 256, (batch, 3, size, size)).astype(np.uint8)

    def selected(b: Any, s: Any) -> Any:
        return ops.nms(b, s, 0.5, max_output_size=count)[0]

    def padded(ops_: Any) -> Callable[..., Any]:
        torch = _torch()
        return lambda b, s: torch.nn.functional.pad(best := ops_.nms(b, s, 0.5), (0, count - len(best)), value=-1)

    def gradient(ops_: Any) -> Callable[..., Any]:
        def pulled(x: Any, r: Any) -> Any:
            leaf = x.detach().requires_grad_()
            ops_.roi_align(leaf, r, 7, sampling_ratio=2).sum().backward()
            return leaf.grad

        return pulled

    def aligned(x: Any, r: Any) -> Any:
        return ops.roi_align(x, r, 7, sampling_ratio=2)

    def image(name: str, *arguments: Any, tolerance: float = 1) -> Row:
        def theirs(_: Any, functional: Any) -> Callable[..., Any]:
            modes = {mode.value: mode for mode in importlib.import_module("torchvision.transforms").InterpolationMode}
            converted = [modes[a] if isinstance(a, str) else a for a in arguments]
            return lambda x: getattr(functional, name)(x, *converted)

        label = ", ".join([name, *[a for a in arguments if isinstance(a, str)]])
        return Row(label, lambda x: getattr(transforms, name)(x, *arguments), theirs, (images,), tolerance)

    return [
        Row("nms", selected, lambda o, t: padded(o), (boxes, scores), 0),
        Row("box_iou", ops.box_iou, lambda o, t: o.box_iou, (boxes, boxes), 1e-5),
        Row("generalized_box_iou", ops.generalized_box_iou, lambda o, t: o.generalized_box_iou, (boxes, boxes), 1e-4),
        Row("roi_align", aligned, lambda o, t: lambda x, r: o.roi_align(x, r, 7, sampling_ratio=2), (maps, regions), 1e-3),
        Row("roi_align, gradient", vf.grad(lambda x, r: aligned(x, r).sum()), lambda o, t: gradient(o), (maps, regions), 1e-2),
        Row("roi_pool", lambda x, r: ops.roi_pool(x, r, 7), lambda o, t: lambda x, r: o.roi_pool(x, r, 7), (maps, regions), 0),
        image("adjust_brightness", 1.3),
        image("adjust_contrast", 1.3),
        image("adjust_saturation", 1.3),
        image("adjust_hue", 0.2),
        image("equalize"),
        image("gaussian_blur", [5, 5], [1.5, 1.5]),
        image("resize", [100, 120], tolerance=2),
        # A position between two pixels may be rounded either way.
        image("rotate", 30, "nearest", tolerance=255),
        image("rotate", 30, "bilinear", tolerance=2),
    ]


def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch


def _torchvision() -> tuple[Any, Any] | None:
    try:
        return importlib.import_module("torchvision.ops"), importlib.import_module("torchvision.transforms.v2.functional")
    except (ImportError, RuntimeError):
        return None


def main() -> int:
    """Print the table; return 1 if results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    peer, agree, ratios = _torchvision(), True, []
    for row in rows(options.quick):
        arrays = [vf.numpy.asarray(array) for array in row.arrays]
        jitted = vf.jit(row.function)
        calls: list[Callable[[], Any]] = [lambda call=jitted, xs=arrays: call(*xs).block_until_ready()]  # type: ignore[misc]
        if peer is not None:
            tensors, theirs = [_torch().from_numpy(array) for array in row.arrays], row.theirs(*peer)
            calls.append(lambda call=theirs, xs=tensors: call(*xs))  # type: ignore[misc]
            results = [np.asarray(call()).astype(np.float64) for call in calls]
            scale = max(1.0, float(np.abs(results[1]).max())) if row.tolerance < 1 else 1.0
            same = results[0].shape == results[1].shape and float(np.abs(results[0] - results[1]).max(initial=0)) <= row.tolerance * scale
            agree &= same
        least = [np.inf] * len(calls)
        for _ in range(1 if options.quick else options.rounds):
            for number, call in enumerate(calls):
                start = time.process_time()
                call()
                least[number] = min(least[number], time.process_time() - start)
        text = "  ".join(f"{1e3 * seconds:9.3f} ms" for seconds in least)
        if peer is not None:
            ratios.append(least[0] / least[1])
            text += f"  {ratios[-1]:6.2f} times torchvision's{'' if same else ', and other results'}"
        print(f"{row.name:22s} {text}", flush=True)
    if ratios:
        print(f"geometric mean: {np.exp(np.mean(np.log(ratios))):.2f} times torchvision's")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
