"""Compare matrix products in WGSL with cuBLAS: `python -m benchmarks.gpu.gemm`.

Measures the routine that a jitted `matmul` runs, with the schedule chosen for this device, and cuBLAS by PyTorch in true float32. Samples
of both, and of all products, are interleaved; times and ratios are medians. Products slower than wanted are named at the end. Schedules
to choose from are tried by ``python -m benchmarks.gpu.schedules``.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
from benchmarks.gpu import peers
from benchmarks.gpu.bench import WAKING, Bench
from volta_fn.compiler.pipeline import lower
from volta_fn.targets.wgsl.routine import Routine

LAYOUTS = ("NN", "NT", "TN")

#: Batch, m, n, k.
Sizes = tuple[int, int, int, int]

#: What part of cuBLAS' speed is wanted, and of the largest squares.
WANTED, WANTED_OF_SQUARE = 0.85, 0.92
SQUARE: Sizes = (1, 4096, 4096, 4096)

#: Squares, extreme shapes, stacks, and what networks have.
SHAPES: list[Sizes] = [
    SQUARE,
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


@dataclass(frozen=True)
class Product:
    """A stack of products; operands are normal (N) or transposed (T) in memory."""

    sizes: Sizes
    layout: str

    @property
    def name(self) -> str:
        """Sizes and layout."""
        return f"{'x'.join(map(str, self.sizes))} {self.layout}"

    @property
    def count(self) -> int:
        """The number of multiplications."""
        return math.prod(self.sizes)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the operands in memory, and of the result."""
        batch, m, n, k = self.sizes
        left = (m, k) if self.layout[0] == "N" else (k, m)
        right = (k, n) if self.layout[1] == "N" else (n, k)
        stack = (batch,) if batch > 1 else ()
        return (*stack, *left), (*stack, *right), (*stack, m, n)

    def __call__(self, x: Any, y: Any) -> Any:
        """Multiply operands as they are in memory, of any library."""
        return (x if self.layout[0] == "N" else x.swapaxes(-1, -2)) @ (y if self.layout[1] == "N" else y.swapaxes(-1, -2))


def routine(bench: Bench, product: Product) -> Routine:
    """Return the routine that a program runs for a product."""
    operands = [vf.ShapeDtypeStruct(shape, "float32") for shape in product.shapes[:2]]
    (item,) = lower(vf.make_jaxpr(product)(*operands), bench.gpu.target).items
    result = None if item.key is None else bench.gpu.routines(item.key)
    assert result is not None
    return result


def is_right(product: Product, x: np.ndarray, y: np.ndarray, actual: np.ndarray) -> bool:
    """Return True if a few rows of the first and the last result are NumPy's."""
    batch, m, n, k = product.sizes
    few, actual = sorted({0, m // 2, m - 1}), actual.reshape(batch, m, n)
    left, right = (z.reshape(batch, *z.shape[-2:]) for z in (x, y))
    for i in {0, batch - 1}:
        rows = left[i][few] if product.layout[0] == "N" else left[i][:, few].T
        wanted = rows.astype(np.float64) @ (right[i] if product.layout[1] == "N" else right[i].T)
        if not np.abs(actual[i, few] - wanted).max() < 1e-4 * k**0.5 + 1e-3:
            return False
    return True


class Contest(NamedTuple):
    """A prepared product, whether its result is right, and the peer's timer."""

    routine: Routine
    buffers: list[Any]
    right: bool
    theirs: Callable[[], float]


def ready(bench: Bench, product: Product, compiled: Routine, numbers: np.ndarray) -> Contest:
    """Prepare a product of random operands."""
    x, y = np.resize(numbers, product.shapes[0]), np.resize(numbers[::-1], product.shapes[1])
    result = bench.room(4 * math.prod(product.shapes[2]))
    buffers = [bench.put(x), bench.put(y), result, *map(bench.room, compiled.workspaces)]
    bench.run(compiled, buffers)
    right = is_right(product, x, y, bench.get(result, np.float32, product.shapes[2]))
    return Contest(compiled, buffers, right, peers.product(product.sizes, product.layout))


class Found(NamedTuple):
    """Median seconds of a product, ours and the peer's, their ratios, and correctness."""

    ours: float
    peer: float
    ratio: float
    ratios: list[float]
    right: bool


def measured(bench: Bench, contests: dict[Product, Contest], rounds: int) -> dict[Product, Found]:
    """Time all products.

    Every round samples all products, so that a disturbance of a second affects one round only; and the host has nothing to do in between,
    during which a GPU might lower its clock.
    """
    samples: dict[Product, list[tuple[float, float]]] = {product: [] for product in contests}
    first = next(iter(contests.values()), None)
    if first is not None:
        bench.seconds(first.routine, first.buffers, wake=WAKING)
    for _ in range(rounds):
        for product, one in contests.items():
            samples[product].append((bench.seconds(one.routine, one.buffers), one.theirs()))
    results = {}
    for product, pairs in samples.items():
        ours, peer = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios = [theirs / mine for mine, theirs in pairs]
        results[product] = Found(ours, peer, statistics.median(ratios), ratios, contests[product].right)
    return results


def verdict(actual: dict[Product, Found]) -> str:
    """Say which wanted ratios are met."""
    verdicts = []
    for name, wanted, chosen in (
        ("4096³", WANTED_OF_SQUARE, [p for p in actual if p.sizes == SQUARE]),
        ("the others", WANTED, [p for p in actual if p.sizes != SQUARE]),
    ):
        low = [f"{p.name} {actual[p].ratio:.2f}" for p in chosen if actual[p].ratio < wanted or not actual[p].right]
        compared = any(not math.isnan(actual[p].ratio) for p in chosen)
        judged = f"NOT MET ({', '.join(low)})" if low else "met" if compared else "not measured"
        verdicts.append(f"{name}, {len(chosen)} measured, of cuBLAS' speed at least {wanted}: {judged}")
    return "\n".join(verdicts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and the verdict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.gemm", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each product, ours and the peer's (default %(default)s)")
    parser.add_argument("--only", metavar="PATTERN", default="", help="a regular expression: only what has it in its name")
    parser.add_argument("--most", type=float, default=2.0**40, help="leave out products with more multiplications")
    options = parser.parse_args(arguments)
    begun, bench = time.perf_counter(), Bench()
    todo = [p for sizes in SHAPES for layout in LAYOUTS if (p := Product(sizes, layout)).count <= options.most]
    routines = {p: routine(bench, p) for p in todo if re.search(options.only, p.name)}
    for pipeline in [p for one in routines.values() for p in bench.compiled(one)]:
        pipeline.result()
    numbers = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    result = measured(bench, {p: ready(bench, p, one, numbers) for p, one in routines.items()}, options.rounds)
    print(f"{bench.name}; µs in float32: ours, cuBLAS; TFLOP/s; cuBLAS' time over ours (least and most)")
    for product, f in result.items():
        times = f"{f.ours * 1e6:9.1f} {f.peer * 1e6:9.1f} {2e-12 * product.count / f.ours:7.2f}"
        ratios = f"{f.ratio:6.2f} ({min(f.ratios):.2f} {max(f.ratios):.2f})"
        print(f"{product.name:>22} {times} {ratios}{'' if f.right else '  WRONG'}")
    print(f"{verdict(result)}\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
