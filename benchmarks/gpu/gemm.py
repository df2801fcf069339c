"""`python -m benchmarks.gpu.gemm`: matrix products in WGSL, by every schedule that may be good, beside PyTorch's in true float32.

Schedules whose results differ from the first one's, or from NumPy's, are shown as wrong and cannot win. The best go to a JSON file, in the
form of the file that comes with the package.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.bench import Bench, Runner, describe
from benchmarks.gpu.peers import product_seconds
from benchmarks.machine import ROOT
from volta_fn.backends.wgsl.matmul.choice import candidates, variations
from volta_fn.backends.wgsl.matmul.contract import contract, is_tiled, oriented
from volta_fn.backends.wgsl.matmul.epilogues import rounded
from volta_fn.backends.wgsl.matmul.remembered import Choices, class_of, write
from volta_fn.backends.wgsl.matmul.schedule import Schedule
from volta_fn.backends.wgsl.matmul.tiles import Buffers, tiled
from volta_fn.backends.wgsl.matmul.tuning import SIMPLE, timings
from volta_fn.backends.wgsl.matmul.working import working
from volta_fn.compiler.contractions.maps import Contraction, of_problem
from volta_fn.compiler.contractions.problem import problem_of

FLOAT = np.dtype(np.float32)
LAYOUTS = ("NN", "NT", "TN")

#: Batch, m, n, k: squares, extreme shapes, stacks, and what networks have.
SHAPES = [
    (1, 4096, 4096, 4096),
    (1, 2048, 2048, 2048),
    (1, 1024, 1024, 1024),
    (1, 8192, 1024, 1024),
    (1, 1024, 8192, 256),
    (64, 512, 512, 512),
    (96, 128, 128, 64),
    (96, 128, 64, 128),
    (1, 128, 1024, 784),
    (1, 128, 1024, 1024),
    (1, 128, 10, 1024),
    (1, 1024, 1024, 128),
    (1, 1024, 768, 256),
    (1, 1024, 1024, 256),
    (1, 1024, 256, 1024),
    (1, 256, 1024, 1024),
    (1, 1, 4096, 4096),
    (1, 512, 512, 16384),
]


class Case(NamedTuple):
    """A product, and the schedules to try."""

    name: str
    sizes: tuple[int, int, int, int]
    layout: str
    contraction: Contraction
    buffers: Buffers
    schedules: list[Schedule]
    guess: Schedule


def contraction_of(sizes: tuple[int, int, int, int], layout: str) -> tuple[Contraction, Buffers]:
    """A stack of products, the operands as they are (N) or transposed (T) in memory."""
    batch, m, n, k = sizes
    lhs = (batch, m, k) if layout[0] == "N" else (batch, k, m)
    rhs = (batch, k, n) if layout[1] == "N" else (batch, n, k)
    inner = ((2,) if layout[0] == "N" else (1,)), ((1,) if layout[1] == "N" else (2,))
    return oriented(of_problem(problem_of(lhs, rhs, (inner, ((0,), (0,))), (FLOAT,) * 3)))


def cases(bench: Bench, layouts: Sequence[str], count: int) -> Iterator[Case]:
    """All products, the layouts of one shape after another."""
    for sizes in SHAPES:
        for layout in layouts:
            c, buffers = contraction_of(sizes, layout)
            found = candidates(c, working(FLOAT), bench.facts, count)
            schedules = [SIMPLE, *found, *[replace(best, unroll=u) for best in found[:6] for u in (0, 8) if best.unroll]]
            if c.products >= 2**36 and layout == "NN":
                for best in found[:3]:
                    schedules += [s for s in variations(best, working(FLOAT), bench.facts) if s not in schedules]
            yield Case("x".join(map(str, sizes)), sizes, layout, c, buffers, schedules, found[0])


def prepare(bench: Bench, case: Case) -> None:
    """Begin to compile all that a case needs."""
    for schedule in case.schedules:
        bench.compiled(tiled(case.contraction, working(FLOAT), schedule, bench.facts, rounded(FLOAT), case.buffers))


def is_right(case: Case, runner: Runner) -> bool:
    """Whether the first schedule gives what NumPy gives, at the first and last rows."""
    batch, m, n, k = case.sizes
    a, b = [x.reshape(batch, -1) for x in runner.operands]
    left = a.reshape(batch, m, k) if case.layout[0] == "N" else a.reshape(batch, k, m).swapaxes(1, 2)
    right = b.reshape(batch, k, n) if case.layout[1] == "N" else b.reshape(batch, n, k).swapaxes(1, 2)
    routine = tiled(case.contraction, working(FLOAT), case.schedules[0], runner.bench.facts, rounded(FLOAT), case.buffers)
    found = runner.trial(routine, runner.operands, batch * m * n, FLOAT)[0].reshape(batch, m, n)
    few = sorted({0, m // 2, m - 1})
    return all(np.abs(found[i, few] - left[i, few].astype(np.float64) @ right[i]).max() < 1e-4 * k**0.5 + 1e-3 for i in {0, batch - 1})


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write the best."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.gemm", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=200, help="begin nothing new after so many (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=8, help="schedules to try for each product (default %(default)s)")
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS, help="NN, NT, TN (default: all)")
    parser.add_argument("--all", action="store_true", help="print every schedule's time, not only those of variations")
    parser.add_argument("--most", type=float, default=2.0**40, help="leave out products with more multiplications")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "benchmarks" / "gemm.json", help="where the best go (%(default)s)")
    options = parser.parse_args(arguments)
    begun, bench = time.perf_counter(), Bench()
    runner, best = Runner(bench), Choices()
    print(f"{bench.opened.name}; TFLOP/s in float32: the best schedule, the one chosen untried, PyTorch, best / PyTorch", flush=True)
    todo = [case for case in cases(bench, options.layouts, options.candidates) if case.contraction.products <= options.most]
    prepare(bench, todo[0])
    for case, following in zip(todo, [*todo[1:], None], strict=True):
        if time.perf_counter() - begun > options.seconds:
            print("out of time")
            break
        if following is not None:
            prepare(bench, following)
        try:
            one(runner, case, best, everything=options.all or len(case.schedules) > 3 * options.candidates)
        except Exception as error:
            print(f"{case.name:>20} {case.layout} FAILED: {type(error).__name__} {error}", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write(options.json, best)
    print(f"{time.perf_counter() - begun:.0f} s; the best are in {options.json}")


def one(runner: Runner, case: Case, best: Choices, *, everything: bool) -> None:
    """Try a product, and print its line; those of all schedules, too, if `everything` is wanted."""
    c, bench = case.contraction, runner.bench
    found = timings(c, working(FLOAT), bench.facts, case.schedules, runner.trial, case.buffers)
    right, peer, rate, ours = is_right(case, runner), product_seconds(case.sizes, case.layout), 2e-12 * c.products, found[0].seconds
    guess = next((t.seconds for t in found if t.schedule == case.guess), float("inf"))
    if not is_tiled(c):
        guess = runner.trial(contract(c, bench.facts, case.buffers), runner.operands, c.target.elements, FLOAT)[1]
    line = f"{case.name:>20} {case.layout} {rate / ours:7.2f} {rate / guess:7.2f} {rate / peer:7.2f} {peer / ours:5.2f}"
    wrong = len(case.schedules) - len(found)
    flaws = ("" if right else "  NOT NUMPY'S RESULT") + (f"  {wrong} WRONG" if wrong else "")
    print(f"{line}  {ours * 1e6:8.1f} us  {describe(found[0].schedule)}{'' if is_tiled(c) else '  (chosen: no tiles)'}{flaws}", flush=True)
    for timing in found if everything else ():
        print(f"{'':24}{rate / timing.seconds:7.2f}  {describe(timing.schedule)}")
    if right:
        best.setdefault(bench.opened.name, {})[class_of(c)] = found[0].schedule


if __name__ == "__main__":
    main()
