"""Compare how fast single kernels move memory: `python -m benchmarks.gpu.kernels`.

Each row has the bytes that a kernel must read and write at least, divided by its time, and as a fraction of what PyTorch's copy on CUDA
moves in the same time. Samples of the kernel, of PyTorch's and of that copy are interleaved, and medians count. Kernels slower than
wanted are named at the end. ``--constant schedule._VALUES=32`` measures with another value of a constant of the schedules.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from benchmarks.gpu import peers
from benchmarks.gpu.bench import WAKING, Bench
from volta_fn import nn
from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.ir.kernel import Kernel, KernelCall, interpret
from volta_fn.compiler.target import Target
from volta_fn.core.jaxpr import inline_calls
from volta_fn.targets.wgsl.loops import routine
from volta_fn.targets.wgsl.routine import Routine


class Case(NamedTuple):
    """A program that is one kernel, in both frameworks."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    ours: Callable[..., Any]
    torchs: Callable[..., Any] | None


def layer_norm(x: Any) -> Any:
    """Normalise rows."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def softmax_gradient(y: Any, g: Any) -> Any:
    """Pull a cotangent back through a softmax, given its result."""
    return y * (g - (y * g).sum(-1, keepdims=True))


M = 1 << 20
FUNCTIONAL = "torch.nn.functional"


def torch_function(name: str) -> Callable[..., Any]:
    """Return a function of PyTorch, which is imported when it is called."""
    module, _, attribute = name.rpartition(".")
    return lambda *args, **options: getattr(importlib.import_module(module), attribute)(*args, **options)


CASES = [
    Case("copy 64M", ((64 * M,),), "float32", lambda x: -x, lambda x: -x),
    Case("add 64M", ((64 * M,),) * 2, "float32", lambda x, y: x + y, lambda x, y: x + y),
    Case("add 64M odd", ((64 * M - 1,),) * 2, "float32", lambda x, y: x + y, lambda x, y: x + y),
    Case("add bfloat16 64M", ((64 * M,),) * 2, "bfloat16", lambda x, y: x + y, lambda x, y: x + y),
    Case("add int8 64M", ((64 * M,),) * 2, "int8", lambda x, y: x + y, lambda x, y: x + y),
    Case("bias 65536x1000", ((65536, 1000), (1000,)), "float32", lambda x, b: x + b, lambda x, b: x + b),
    Case("gelu 64M", ((64 * M,),), "float32", nn.gelu, lambda x: torch_function(f"{FUNCTIONAL}.gelu")(x, approximate="tanh")),
    Case("sum 64M", ((64 * M,),), "float32", lambda x: x.sum(), lambda x: x.sum()),
    Case("max 64M", ((64 * M,),), "float32", lambda x: x.max(), lambda x: x.max()),
    Case("row sum 65536x1024", ((65536, 1024),), "float32", lambda x: x.sum(1), lambda x: x.sum(1)),
    Case("row sum 8388608x8", ((8 * M, 8),), "float32", lambda x: x.sum(1), lambda x: x.sum(1)),
    Case("column sum 8192x8192", ((8192, 8192),), "float32", lambda x: x.sum(0), lambda x: x.sum(0)),
    Case("column sum 1048576x64", ((M, 64),), "float32", lambda x: x.sum(0), lambda x: x.sum(0)),
    Case("channel sum 64x64x128x128", ((64, 64, 128, 128),), "float32", lambda x: x.sum((0, 2, 3)), lambda x: x.sum((0, 2, 3))),
    Case("transpose 8192x8192", ((8192, 8192),), "float32", lambda x: -x.T, lambda x: (-x.T).contiguous()),
    Case("transpose bfloat16 8192x8192", ((8192, 8192),), "bfloat16", lambda x: -x.T, lambda x: (-x.T).contiguous()),
    *[
        case
        for rows, columns in ((65536, 1024), (32768, 4096), (4096, 16384), (1 << 20, 64), (65536, 1000))
        for case in (
            Case(f"softmax {rows}x{columns}", ((rows, columns),), "float32", nn.softmax, lambda x: x.softmax(-1)),
            Case(
                f"layer norm {rows}x{columns}",
                ((rows, columns),),
                "float32",
                layer_norm,
                lambda x: torch_function(f"{FUNCTIONAL}.layer_norm")(x, x.shape[-1:]),
            ),
        )
    ],
    Case("softmax gradient 65536x1024", ((65536, 1024),) * 2, "float32", softmax_gradient, None),
]

#: The bytes that PyTorch's copy, the first case, moves.
COPIED = 2 * 4 * math.prod(CASES[0].shapes[0])

#: What part of what it moves in the same time is wanted.
WANTED = 0.9

#: Shapes so small that the interpreter can say whether results are right.
_SMALL = 3_000_000


def kernel_of(case: Case) -> Kernel:
    """Return the one kernel of a program."""
    avals = [vf.ShapeDtypeStruct(shape, case.dtype) for shape in case.shapes]
    (item,) = [i for i in fuse(inline_calls(vf.make_jaxpr(case.ours)(*avals)), Target()).nodes if isinstance(i, KernelCall)]
    return item.kernel


def smaller(case: Case) -> Case:
    """Return the case with fewer rows."""
    shrunk = [(max(1, min(n, _SMALL // int(np.prod(rest, dtype=np.int64)))), *rest) for n, *rest in case.shapes]
    return case._replace(shapes=tuple(shrunk if len(case.shapes[0]) == len(case.shapes[-1]) else [shrunk[0], *case.shapes[1:]]))


def values(kernel: Kernel) -> list[np.ndarray]:
    """Draw a kernel's inputs."""
    rng = np.random.default_rng(0)
    result = []
    for b in kernel.inputs:
        block = rng.standard_normal(min(b.size, 1 << 22), np.float32)
        result.append(np.resize((block * 8).astype(b.dtype) if b.dtype.kind == "i" else block.astype(b.dtype), b.size))
    return result


def error(bench: Bench, case: Case) -> float:
    """Return the largest error of a small case, relative to the largest number."""
    kernel = kernel_of(smaller(case))
    compiled, inputs = routine(kernel, bench.capabilities), values(kernel)
    buffers = room(bench, kernel, compiled, inputs)
    bench.run(compiled, buffers)
    worst = 0.0
    for buffer, b, wanted in zip(buffers[len(inputs) :], kernel.outputs, interpret(kernel, *inputs), strict=False):
        actual = bench.get(buffer, b.dtype, (b.size,)).astype(np.float64)
        exact = wanted.reshape(-1).astype(np.float64)
        worst = max(worst, float(np.abs(actual - exact).max() / np.abs(exact).max()))
    return worst


def room(bench: Bench, kernel: Kernel, compiled: Routine, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Make all buffers of a routine."""
    outputs = [bench.room(b.size * b.dtype.itemsize) for b in kernel.outputs]
    return [*map(bench.put, inputs), *outputs, *map(bench.room, compiled.workspaces)]


def torch_timer(case: Case) -> Callable[[], float]:
    """Return a timer of PyTorch on CUDA, which gives NaN without CUDA."""
    torch = peers.torch()
    if torch is None or case.torchs is None:
        return lambda: float("nan")
    args = [torch.ones(shape, dtype=getattr(torch, case.dtype), device="cuda") for shape in case.shapes]
    call = case.torchs
    return peers.timer(lambda: call(*args))


class Found(NamedTuple):
    """Median seconds, ours and PyTorch's, and our rate as a fraction of the copy's."""

    ours: float
    theirs: float
    share: float


def measured(
    bench: Bench, compiled: Routine, buffers: Sequence[Any], moved: int, timers: Sequence[Callable[[], float]], rounds: int
) -> Found:
    """Sample a kernel and the `timers` (PyTorch's kernel, its copy) in rounds."""
    bench.seconds(compiled, buffers, wake=WAKING)
    samples = [(bench.seconds(compiled, buffers), *[timer() for timer in timers]) for _ in range(rounds)]
    shares = [moved / COPIED * copying / ours for ours, _, copying in samples]
    return Found(*[statistics.median(numbers) for numbers in ([t[0] for t in samples], [t[1] for t in samples], shares)])


def table_row(bench: Bench, case: Case, quick: bool, copying: Callable[[], float], rounds: int) -> tuple[str, float]:
    """Measure a case; return its row, and its rate as a fraction of the copy's."""
    wrong = error(bench, case)
    kernel = kernel_of(smaller(case) if quick else case)
    kernel_routine = routine(kernel, bench.capabilities)
    buffers = room(bench, kernel, kernel_routine, values(kernel))
    start = time.perf_counter()
    for pipeline in bench.compiled(kernel_routine):
        pipeline.result()
    compiled = time.perf_counter() - start
    moved = sum(b.size * b.dtype.itemsize for b in (*kernel.inputs, *kernel.outputs))
    theirs = torch_timer(case) if not quick else lambda: float("nan")
    result = measured(bench, kernel_routine, buffers, moved, (theirs, copying), rounds)
    for buffer in buffers:
        buffer.destroy()
    characters = sum(len(d.source) for d in kernel_routine.dispatches)
    text = f"{len(kernel_routine.dispatches)} dispatches, {characters} characters in {compiled * 1e3:.0f} ms"
    rates = f"{moved / result.ours / 1e9:8.0f} {moved / result.theirs / 1e9:9.0f} {result.theirs / result.ours:6.2f}x {result.share:7.2f}"
    return f"{case.name:32} {result.ours * 1e6:10.1f} us {rates}  error {wrong:.0e}  {text}", result.share


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.kernels", description="Memory speed of single kernels.")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only what has it in its name")
    parser.add_argument("--rounds", type=int, default=5, help="turns of ours and PyTorch's (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--constant", action="append", default=[], metavar="MODULE.NAME=VALUE", help="another value of a constant in loops")
    options = parser.parse_args()
    for setting in options.constant:
        name, value = setting.split("=")
        module, attribute = name.split(".")
        result = importlib.import_module(f"volta_fn.targets.wgsl.loops.{module}")
        getattr(result, attribute)
        setattr(result, attribute, int(value))
    bench = Bench()
    print(bench.name, bench.capabilities)
    print(f"{'':32} {'time':>13} {'GB/s':>8} {'torch':>9} {'ratio':>7} {'of copy':>7}", flush=True)
    copying, slow = torch_timer(CASES[0]), []
    for case in CASES:
        if re.search(options.only, case.name):
            try:
                text, share = table_row(bench, case, options.quick, copying, options.rounds)
                print(text, flush=True)
                slow += [] if share >= WANTED else [case.name]
            except Exception as failure:
                print(f"{case.name:32} FAILED: {type(failure).__name__}: {str(failure)[:300]}", flush=True)
    print(f"less than {WANTED} of what PyTorch's copy moves: {', '.join(slow) or 'nothing'}")


if __name__ == "__main__":
    main()
