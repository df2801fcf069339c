"""Compare two ways to factor matrices: `python -m benchmarks.gpu.cholesky`.

The routine of the whole factorisation is compared with a program of panels and products.

For each shape: the device's time of the routine; then, by the columns of a panel and how many of these are eliminated between two
barriers, that of the program, their ratio, and the time of its panels, its products and its last kernel when each kind runs by itself.
Variants take turns, and medians count. At the end, first and later calls of jitted functions, with the host's time. Matrices that the
routine does not take are NumPy's on the host.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import volta_fn as vf
from benchmarks.gpu.bench import WAKING, Bench
from benchmarks.gpu.device import opened_gpu
from benchmarks.machine import use_gpu
from volta_fn import lax
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import LoweredProgram
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Literal
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.targets.wgsl import library, target
from volta_fn.targets.wgsl.library.linalg.cholesky import PIVOTS, WIDEST
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.target import WgslTarget

SHAPES = [
    *[(1, n, n) for n in (8, 32, 64, 128, 256, 512, 1024, 2048, 4096)],
    *[(1024, 32, 32), (512, 128, 128), (64, 256, 256), (4, 1024, 1024)],
]


class Choice(NamedTuple):
    """The columns of a panel, and those eliminated between two barriers."""

    width: int
    pivots: int

    def __str__(self) -> str:
        return f"{self.width}/{self.pivots}"


DEFAULT = Choice(WIDEST[4], PIVOTS[WIDEST[4]])
#: Others are timed up to this size: narrow panels have many shaders.
OTHERS, OTHERS_UP_TO = (Choice(64, 1), Choice(64, 4), Choice(32, 1), Choice(32, 2), Choice(32, 4)), 1024
#: Seconds that the runs of one sample take at least, and how many samples are taken.
SAMPLE, SAMPLES = 0.002, 5
#: The kinds of dispatches, and the narrowest of the widths.
PHASES, NARROWEST = ("panels", "products", "result"), 32


def factor(x: Any) -> Any:
    """Factor matrices, of which the lower triangles are read."""
    return lax.linalg.cholesky(x, symmetrize_input=False)


class Program(NamedTuple):
    """A lowered program as one routine, and the names of its dispatches' kinds."""

    routine: Routine
    kinds: tuple[str, ...]

    def phase(self, kind: str) -> Routine:
        """Return the dispatches of one kind."""
        dispatches = [d for d, k in zip(self.routine.dispatches, self.kinds, strict=True) if k == kind]
        return replace(self.routine, dispatches=tuple(dispatches))


def as_program(program: LoweredProgram) -> Program:
    """Return a program of one operand and one result as a routine.

    Every intermediate value has a workspace.
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
        buffers = [numbers[v] for v in variables]
        for size in routine.workspaces:
            buffers.append(2 + len(sizes))
            sizes.append(size)
        for d in routine.dispatches:
            written = frozenset([buffers[k] for k in d.written])
            dispatches.append(replace(d, buffers=tuple([buffers[k] for k in d.buffers]), written=written))
            kinds.append(_kind(item.key.key))
    return Program(Routine(tuple(dispatches), tuple(sizes)), tuple(kinds))


def _kind(key: Any) -> str:
    if key[0] != "kernel":
        return "panels"
    return "products" if key[1].reduction_axes else "result"


@contextmanager
def chosen(choice: Choice | None) -> Iterator[None]:
    """Make programs by a choice in a block; by the routine without one."""
    if choice is None:
        with mock.patch.object(target, "expand_cholesky", lambda closed, panel_width: closed):
            yield
    else:
        with mock.patch.dict(WIDEST, {4: choice.width}), mock.patch.dict(PIVOTS, dict.fromkeys(PIVOTS, choice.pivots)):
            yield


class Timer:
    """Times variants of one matrix by turns."""

    def __init__(self, bench: Bench, x: np.ndarray) -> None:
        self.bench, self.x = bench, x
        self.variants: dict[str, tuple[Routine, list[Any], int]] = {}
        self.operand, self.result = bench.put(x), bench.room(x.nbytes)

    def add(self, name: str, routine: Routine, workspaces: Sequence[Any] | None = None) -> list[Any]:
        """Add a variant; return its workspaces."""
        workspaces = [self.bench.room(size) for size in routine.workspaces] if workspaces is None else list(workspaces)
        buffers, more = [self.operand, self.result, *workspaces], 1
        self.bench.run(routine, buffers)
        while self.bench.run(routine, buffers, more) < SAMPLE and more < 512:
            more *= 2
        self.variants[name] = routine, buffers, more
        return workspaces

    def is_right(self, name: str, expected: np.ndarray) -> bool:
        """Return True if a variant's result is NumPy's."""
        routine, buffers, _ = self.variants[name]
        self.bench.run(routine, buffers)
        actual = self.bench.get(self.result, self.x.dtype, self.x.shape)
        return np.allclose(actual, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())

    def medians(self) -> dict[str, float]:
        """Return the seconds of every variant."""
        samples: dict[str, list[float]] = {name: [] for name in self.variants}
        for _ in range(SAMPLES):
            for name, (routine, buffers, more) in self.variants.items():
                many, one = self.bench.run(routine, buffers, 1 + more), self.bench.run(routine, buffers)
                samples[name].append((many - one) / more)
        return {name: statistics.median(times) for name, times in samples.items()}


def positive_definite(shape: tuple[int, ...]) -> np.ndarray:
    """Return random matrices, whose smaller ones differ."""
    rng, n = np.random.default_rng(0), shape[-1]
    a = rng.normal(size=(*shape[:-2], n, min(n, 128))).astype(np.float32)
    return a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)


def row(bench: Bench, shape: tuple[int, ...]) -> str:
    """Return the row of a shape."""
    x = positive_definite(shape)
    start = time.perf_counter()
    expected = np.linalg.cholesky(x)
    host = time.perf_counter() - start
    aval, n = ShapedArray(shape, x.dtype), shape[-1]
    timer = Timer(bench, x)
    routine = library.ROUTINES["cholesky"]((aval,), {}, bench.capabilities)
    if routine is not None:
        timer.add("routine", routine)
    names = ["routine"] if routine is not None else []
    programs: dict[Choice, Program] = {}
    for choice in (DEFAULT, *[c for c in OTHERS if n <= OTHERS_UP_TO and (n > c.width // 2 or c.width == NARROWEST)]):
        with chosen(choice):
            lowered = lower(trace_to_jaxpr(lambda x: [factor(x)], [aval], "factor"), WgslTarget(bench.capabilities))
            programs[choice] = program = as_program(lowered)
        workspaces = timer.add(str(choice), program.routine)
        names.append(str(choice))
        for kind in PHASES:
            phase = program.phase(kind)
            if 0 < len(phase.dispatches) < len(program.routine.dispatches):
                timer.add(f"{choice} {kind}", phase, workspaces)
    wrong = [name for name in names if not timer.is_right(name, expected)]
    seconds = timer.medians()
    base = seconds.get("routine", host)
    lines = [f"{'×'.join(map(str, shape)):>14}  routine {base * 1e6:9.1f}{' ' if routine is not None else '*'}"]
    for choice, program in programs.items():
        total = seconds[str(choice)]
        by_kind = {kind: seconds.get(f"{choice} {kind}") for kind in PHASES}
        times = [f"{program.kinds.count(kind)} {kind} {t * 1e6:.1f}" for kind, t in by_kind.items() if t is not None]
        lines.append(f"{choice!s:>14}          {total * 1e6:9.1f}  ratio {total / base:5.2f}  {', '.join(times)}")
    return "\n".join(lines) + (f"  WRONG: {wrong}" if wrong else "")


def calls(shape: tuple[int, ...]) -> str:
    """Return the row of first and later calls of jitted functions."""
    x = vf.numpy.asarray(positive_definite(shape))
    functions: list[Callable[[], Any]] = []
    first: list[float] = []
    for choice in (None, DEFAULT):
        call = partial(vf.jit(lambda x: factor(x)), x)
        with chosen(choice):
            start = time.perf_counter()
            call().block_until_ready()
            first.append(time.perf_counter() - start)
            opened_gpu().pipelines.upgrades.settle()
        functions.append(call)
    samples: list[list[float]] = [[], []]
    for _ in range(15):
        for call, times in zip(functions, samples, strict=True):
            start = time.perf_counter()
            for _ in range(4):
                result = call()
            result.block_until_ready()
            times.append((time.perf_counter() - start) / 4)
    later = [statistics.median(times) for times in samples]
    return (
        f"{'×'.join(map(str, shape)):>14}  first call {first[0] * 1e3:8.1f} → {first[1] * 1e3:8.1f} ms   "
        f"later {later[0] * 1e6:9.1f} → {later[1] * 1e6:9.1f} µs  ratio {later[1] / later[0]:5.2f}"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cholesky", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see whether everything runs")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds after which no row is begun (default %(default)s)")
    options = parser.parse_args()
    use_gpu()
    shapes = [(1, 8, 8), (3, 32, 32), (1, 160, 160)] if options.quick else SHAPES
    start, bench = time.perf_counter(), Bench()
    waking = Timer(bench, positive_definite((64, 128, 128)))
    waking.add("routine", library.ROUTINES["cholesky"]((ShapedArray((64, 128, 128), np.dtype(np.float32)),), {}, bench.capabilities))
    while not options.quick and time.perf_counter() < start + 2 * WAKING:
        waking.medians()
    print(f"{bench.opened.name}; microseconds on the device (* on the host)", flush=True)
    for table in (partial(row, bench), calls):
        for shape in shapes:
            if time.perf_counter() - start < options.budget * (0.65 if table is not calls else 1):
                print(table(shape), flush=True)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
