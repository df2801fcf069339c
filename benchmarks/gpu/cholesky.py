"""Time Cholesky factorisations by phase: `python -m benchmarks.gpu.cholesky`.

Factorisations are programs. For each shape: the device's time of the program, of PyTorch, and of NumPy on the host; and that of its panels,
of its products and of what puts the panels together, when each phase runs by itself. Each result is first compared with NumPy's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gpu import peers
from benchmarks.gpu.bench import WAKING, Bench
from benchmarks.machine import use_gpu
from volta_fn import lax
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import LoweredProgram
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Literal
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.target import WgslTarget

SHAPES = [
    *[(1, n, n) for n in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096)],
    *[(1024, 32, 32), (512, 128, 128), (64, 256, 256), (4, 1024, 1024)],
]

#: The kinds of dispatches.
PHASES = ("panels", "products", "result")


def as_routine(program: LoweredProgram) -> tuple[Routine, list[str]]:
    """Return a program as a routine, and the kinds of its dispatches.

    The program has one operand and one result. Every intermediate value has a workspace.
    """
    jaxpr = program.closed.jaxpr
    numbers = {program.root(v): k for k, v in enumerate((*jaxpr.invars, *jaxpr.outvars)) if not isinstance(v, Literal)}
    sizes: list[int] = []
    dispatches: list[Dispatch] = []
    kinds: list[str] = []
    for item in program.items:
        assert item.key is not None
        routine, variables = item.key.make(), [program.root(v) for v in (*item.operands, *item.results) if not isinstance(v, Literal)]
        for v in variables:
            if v not in numbers:
                numbers[v] = 2 + len(sizes)
                sizes.append(v.aval.size * v.aval.dtype.itemsize)
        buffers = [numbers[v] for v in variables] + [2 + len(sizes) + k for k in range(len(routine.workspaces))]
        sizes += routine.workspaces
        for d in routine.dispatches:
            dispatches.append(replace(d, buffers=tuple([buffers[k] for k in d.buffers])))
            kinds.append(_kind(item.key.key))
    return Routine(tuple(dispatches), tuple(sizes)), kinds


def _kind(key: Any) -> str:
    if key[0] != "kernel":
        return "panels"
    return "products" if key[1].reduction_axes else "result"


def positive_definite(shape: tuple[int, ...]) -> np.ndarray:
    """Return random matrices."""
    rng, n = np.random.default_rng(0), shape[-1]
    a = rng.normal(size=(*shape[:-2], n, min(n, 128))).astype(np.float32)
    return a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)


def row(bench: Bench, shape: tuple[int, ...], wake: float) -> str:
    """Return the row of a shape, in microseconds."""
    x = positive_definite(shape)
    start = time.perf_counter()
    expected = np.linalg.cholesky(x)
    host = time.perf_counter() - start
    closed = trace_to_jaxpr(lambda x: [lax.linalg.cholesky(x, symmetrize_input=False)], [ShapedArray(shape, x.dtype)], "factor")
    routine, kinds = as_routine(lower(closed, WgslTarget(bench.capabilities)))
    buffers = [bench.put(x), bench.room(x.nbytes), *[bench.room(size) for size in routine.workspaces]]
    bench.run(routine, buffers)
    actual = bench.get(buffers[1], x.dtype, x.shape)
    wrong = "" if np.allclose(actual, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max()) else "  NOT NUMPY'S RESULT"
    total = bench.seconds(routine, buffers, wake=wake)
    phases = []
    for kind in PHASES:
        dispatches = tuple([d for d, k in zip(routine.dispatches, kinds, strict=True) if k == kind])
        if dispatches:
            seconds = bench.seconds(replace(routine, dispatches=dispatches), buffers, wake=wake)
            phases.append(f"{len(dispatches)} {kind} {seconds * 1e6:.1f}")
    times = [f"{seconds * 1e6:10.1f}" for seconds in (total, _peer_seconds(x), host)]
    return f"{'×'.join(map(str, shape)):>14} {' '.join(times)}  {', '.join(phases)}{wrong}"


def _peer_seconds(x: np.ndarray) -> float:
    library = peers.torch()
    if library is None:
        return float("nan")
    operand = library.from_numpy(x).cuda()
    return peers.seconds(lambda: library.linalg.cholesky(operand))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cholesky", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether everything runs")
    options = parser.parse_args(arguments)
    use_gpu()
    bench = Bench()
    print(f"{bench.name}; microseconds here, in PyTorch, and in NumPy", flush=True)
    for shape in [(1, 8, 8), (3, 32, 32), (1, 160, 160)] if options.quick else SHAPES:
        print(row(bench, shape, 0.0 if options.quick else WAKING), flush=True)


if __name__ == "__main__":
    main()
