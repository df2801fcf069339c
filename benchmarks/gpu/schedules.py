"""Try every promising schedule of a product: `python -m benchmarks.gpu.schedules`.

The products are those of `benchmarks.gpu.gemm`, compared with PyTorch's. Schedules whose results differ from the first one's, or from
NumPy's, are shown as wrong and cannot win. The best go to a JSON file in the format of the package's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu import peers
from benchmarks.gpu.bench import Bench, Runner, describe
from benchmarks.gpu.gemm import LAYOUTS, SHAPES, Product, is_right
from benchmarks.machine import ROOT
from volta_fn.compiler.contractions import IndexedContraction, of_problem, problem_of
from volta_fn.targets.wgsl.matmul.contract import SIMPLE, candidates, contract, is_tiled, oriented, timings, variations
from volta_fn.targets.wgsl.matmul.results import BufferNumbers, rounded, working
from volta_fn.targets.wgsl.matmul.tiles import Choices, Schedule, class_of, tiled, write_schedules

FLOAT = np.dtype(np.float32)


class Case(NamedTuple):
    """A product, and the schedules to try."""

    product: Product
    contraction: IndexedContraction
    buffers: BufferNumbers
    schedules: list[Schedule]
    guess: Schedule


def contraction_of(product: Product) -> tuple[IndexedContraction, BufferNumbers]:
    """Return a product as a contraction, for which schedules are chosen."""
    batch, m, n, k = product.sizes
    lhs = (batch, m, k) if product.layout[0] == "N" else (batch, k, m)
    rhs = (batch, k, n) if product.layout[1] == "N" else (batch, n, k)
    inner = ((2,) if product.layout[0] == "N" else (1,)), ((1,) if product.layout[1] == "N" else (2,))
    return oriented(of_problem(problem_of(lhs, rhs, (inner, ((0,), (0,))), (FLOAT,) * 3)))


def case_of(bench: Bench, product: Product, count: int) -> Case:
    """Return a product with so many candidates, and variations of the first."""
    c, buffers = contraction_of(product)
    result = candidates(c, working(FLOAT), bench.capabilities, count)
    schedules = [SIMPLE, *result, *[replace(best, unroll=u) for best in result[:6] for u in (0, 8) if best.unroll]]
    if c.products >= 2**36 and product.layout == "NN":
        for best in result[:3]:
            schedules += [s for s in variations(best, working(FLOAT), bench.capabilities) if s not in schedules]
    return Case(product, c, buffers, schedules, result[0])


def prepare(bench: Bench, case: Case) -> None:
    """Begin to compile all that a case needs."""
    for schedule in case.schedules:
        bench.compiled(tiled(case.contraction, working(FLOAT), schedule, bench.capabilities, rounded(FLOAT), case.buffers))


def first_is_right(case: Case, runner: Runner) -> bool:
    """Return True if the first schedule gives NumPy's result."""
    c, bench = case.contraction, runner.bench
    routine = tiled(c, working(FLOAT), case.schedules[0], bench.capabilities, rounded(FLOAT), case.buffers)
    x, y = (z.reshape(shape) for z, shape in zip(runner.operands, case.product.shapes, strict=False))
    return is_right(case.product, x, y, runner.trial(routine, runner.operands, c.target.elements, FLOAT)[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write the best schedules."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.schedules", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=200, help="begin nothing new after so many (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=8, help="schedules to try for each product (default %(default)s)")
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS, help="NN, NT, TN (default: all)")
    parser.add_argument("--all", action="store_true", help="print every schedule's time, not only those of variations")
    parser.add_argument("--most", type=float, default=2.0**40, help="leave out products with more multiplications")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "benchmarks" / "gemm.json", help="where the best go (%(default)s)")
    options = parser.parse_args(arguments)
    begun, bench = time.perf_counter(), Bench()
    runner, best = Runner(bench), Choices()
    print(f"{bench.name}; TFLOP/s in float32: the best schedule, the one chosen untried, PyTorch, best / PyTorch", flush=True)
    wanted = [p for sizes in SHAPES for layout in options.layouts if (p := Product(sizes, layout)).count <= options.most]
    todo = [case_of(bench, product, options.candidates) for product in wanted]
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
            print(f"{case.product.name:>22} FAILED: {type(error).__name__} {error}", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    write_schedules(options.json, best)
    print(f"{time.perf_counter() - begun:.0f} s; the best are in {options.json}")


def one(runner: Runner, case: Case, best: Choices, *, everything: bool) -> None:
    """Try a product and print its row; with `everything`, a row for each schedule."""
    c, bench = case.contraction, runner.bench
    result = timings(c, working(FLOAT), bench.capabilities, case.schedules, runner.trial, case.buffers)
    right, peer = first_is_right(case, runner), peers.product(case.product.sizes, case.product.layout)()
    rate, ours = 2e-12 * c.products, result[0].seconds
    guess = next((t.seconds for t in result if t.schedule == case.guess), float("inf"))
    if not is_tiled(c):
        guess = runner.trial(contract(c, bench.capabilities, case.buffers), runner.operands, c.target.elements, FLOAT)[1]
    row = f"{case.product.name:>22} {rate / ours:7.2f} {rate / guess:7.2f} {rate / peer:7.2f} {peer / ours:5.2f}"
    wrong = len(case.schedules) - len(result)
    flaws = ("" if right else "  NOT NUMPY'S RESULT") + (f"  {wrong} WRONG" if wrong else "")
    print(f"{row}  {ours * 1e6:8.1f} us  {describe(result[0].schedule)}{'' if is_tiled(c) else '  (chosen: no tiles)'}{flaws}", flush=True)
    for timing in result if everything else ():
        print(f"{'':24}{rate / timing.seconds:7.2f}  {describe(timing.schedule)}")
    if right:
        best.setdefault(bench.name, {})[class_of(c)] = result[0].schedule


if __name__ == "__main__":
    main()
