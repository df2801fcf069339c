"""Compare convolutions in WGSL with cuDNN's: `python -m benchmarks.gpu.conv`.

The forward pass and both gradients, in true float32 (cuDNN by PyTorch). Each gradient is what the gradient's program makes of it: the same
primitive with other dimension numbers. The matrix products that it consists of, over index maps or at Winograd's points, are tried with
every promising schedule; the best go to a JSON file in the format of the package's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
from benchmarks.gpu import peers
from benchmarks.gpu.bench import Bench, Runner, describe
from benchmarks.machine import ROOT
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.convolution import contractions, conv_general_dilated, products_at_points
from volta_fn.targets.wgsl.matmul.contract import candidates, is_tiled, tune
from volta_fn.targets.wgsl.matmul.results import rounded, working
from volta_fn.targets.wgsl.matmul.tiles import Choices, class_of, tiled, write_schedules

FLOAT = np.dtype(np.float32)


class Shape(NamedTuple):
    """A convolution of images [n, channels, size, size]."""

    n: int
    channels: int
    size: int
    outputs: int
    taps: int
    stride: int = 1
    groups: int = 1

    @property
    def name(self) -> str:
        """A short name."""
        extras = (f" /{self.stride}" if self.stride > 1 else "") + (f" g{self.groups}" if self.groups > 1 else "")
        return f"{self.n}x{self.channels}x{self.size}² -> {self.outputs} {self.taps}x{self.taps}{extras}"


SHAPES = [
    Shape(8, 64, 56, 64, 3),
    Shape(16, 64, 32, 64, 3),
    Shape(64, 1, 28, 6, 5),
    Shape(64, 6, 14, 16, 5),
    Shape(64, 3, 32, 64, 3),
    Shape(64, 64, 32, 64, 3),
    Shape(64, 64, 32, 128, 3, 2),
    Shape(64, 128, 16, 128, 3),
    Shape(64, 256, 8, 256, 3),
    Shape(64, 512, 4, 512, 3),
    Shape(64, 64, 32, 128, 1, 2),
    Shape(16, 256, 14, 512, 1),
    Shape(16, 3, 112, 64, 7, 2),
    Shape(16, 128, 28, 128, 3, 1, 128),
]


class Pass(NamedTuple):
    """An equation, and PyTorch's counterpart."""

    name: str
    avals: tuple[ShapedArray, ...]
    params: dict[str, Any]
    peer: Callable[[], Any] | None


def passes(shape: Shape) -> Iterator[Pass]:
    """Return the forward pass, and the gradients by the input and by the weights."""
    same = shape.taps // 2

    def forward(x: Any, w: Any) -> Any:
        padding, stride = ((same, same),) * 2, (shape.stride,) * 2
        return vf.lax.conv_general_dilated(x, w, stride, padding, feature_group_count=shape.groups)

    x = vf.numpy.zeros((shape.n, shape.channels, shape.size, shape.size))
    w = vf.numpy.zeros((shape.outputs, shape.channels // shape.groups, shape.taps, shape.taps))
    y = forward(x, w)
    pulls = {
        "forward": lambda x, w, y: forward(x, w),
        "by input": lambda x, w, y: vf.vjp(lambda x: forward(x, w), x)[1](y),
        "by weights": lambda x, w, y: vf.vjp(lambda w: forward(x, w), w)[1](y),
    }
    for number, (name, function) in enumerate(pulls.items()):
        jaxpr = vf.make_jaxpr(function)(x, w, y).jaxpr
        equation = [e for e in jaxpr.eqns if e.primitive.name == "conv_general_dilated"][-1]
        yield Pass(name, tuple([v.aval for v in equation.invars]), equation.params, peers.convolution(shape, number))


def every_pass() -> Iterator[tuple[Shape, Pass]]:
    """Return the passes of all shapes."""
    for shape in SHAPES:
        for each in passes(shape):
            yield shape, each


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write the best schedules."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.conv", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=200, help="begin nothing new after so many (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=6, help="schedules to try for each (default %(default)s)")
    parser.add_argument("--most", type=float, default=2.0**40, help="leave out convolutions with more multiplications")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "benchmarks" / "conv.json", help="where the best go (%(default)s)")
    options = parser.parse_args(arguments)
    begun, bench = time.perf_counter(), Bench()
    runner, best = Runner(bench), Choices()
    print(
        f"{bench.name}; µs in float32: products by the best schedules, Winograd, what is chosen untried, PyTorch, PyTorch / best",
        flush=True,
    )
    for shape, each in every_pass():
        if time.perf_counter() - begun > options.seconds:
            print("out of time")
            break
        if sum(c.products for c, _ in contractions(each.avals, each.params)) > options.most:
            continue
        try:
            one(bench, runner, best, shape, each, options.candidates)
        except Exception as error:
            print(f"{shape.name:>32} {each.name:>10} FAILED: {type(error).__name__} {error}", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_schedules(options.json, best)
    print(f"{time.perf_counter() - begun:.0f} s; the best are in {options.json}")


def one(bench: Bench, runner: Runner, best: Choices, shape: Shape, each: Pass, count: int) -> None:
    """Try a pass of a convolution, and print its row."""
    best_schedules, wrong, chosen = best.setdefault(bench.name, {}), 0, []
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(prod(aval.shape), np.float32) for aval in each.avals]
    sums = contractions(each.avals, each.params)

    def seconds(algorithm: str) -> float:
        routine = conv_general_dilated(each.avals, {**each.params, "algorithm": algorithm}, bench.capabilities)
        assert routine is not None
        return runner.trial(routine, operands, sums[0][0].target.elements, FLOAT)[1]

    untried = seconds("auto")
    for c, buffers in [*sums, *products_at_points(each.avals, each.params, bench.capabilities)]:
        if is_tiled(c) and c.k:
            work = working(FLOAT)
            schedules = candidates(c, work, bench.capabilities, count)
            for schedule in schedules:
                bench.compiled(tiled(c, work, schedule, bench.capabilities, rounded(FLOAT), buffers))
            result = tune(c, work, bench.capabilities, runner.trial, buffers, count=count)
            wrong += len(schedules) + 1 - len(result)
            best_schedules[class_of(c)] = result[0].schedule
            chosen.append(describe(result[0].schedule))
    products, transforms = seconds("igemm"), seconds("winograd")  # where Winograd does not serve, both are the same
    ours, peer = min(products, transforms), peers.seconds(each.peer) if each.peer else float("nan")
    times = "".join(f"{1e6 * t:9.1f}" for t in (products, transforms, untried, peer))
    print(
        f"{shape.name:>32} {each.name:>10}{times} {peer / ours:6.2f}  {' + '.join(chosen)}{f'  {wrong} WRONG' if wrong else ''}", flush=True
    )


if __name__ == "__main__":
    main()
