"""The choice of algorithm for a contraction, and the timing of its schedules.

A contraction is an equation (`dot_general`) or a kernel that is a product. An estimate of the time on a large GPU chooses a schedule where
none was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.scalars import kind
from volta_fn.compiler.contractions import (
    Axes,
    Contraction,
    IndexedContraction,
    Operand,
    OperandMap,
    ResultMap,
    Walk,
    contraction_of,
    merged,
    of_problem,
    problem_of,
)
from volta_fn.compiler.ir.axes import KernelAnalysis
from volta_fn.compiler.ir.kernel import Kernel, Load
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.contraction import product_dtype
from volta_fn.targets.wgsl.loops.emit_values import LANES, AxisSpan, Buffers, LaneScope, Texts, bind_kernel
from volta_fn.targets.wgsl.matmul.direct import can_be_thin, few_results, few_terms, is_of_few_results, is_of_few_terms, is_thin, thin
from volta_fn.targets.wgsl.matmul.results import (
    BufferNumbers,
    Epilogue,
    ResultStore,
    SumIndex,
    Working,
    rounded,
    sum_dispatch,
    working,
)
from volta_fn.targets.wgsl.matmul.tiles import (
    Choices,
    Schedule,
    class_of,
    read_schedules,
    record_schedules,
    remembered,
    tiled,
    write_schedules,
)
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader
from volta_fn.targets.wgsl.scalars.number import is_supported

# The choice of schedules, by an estimate of their time on a large GPU.

#: Multiprocessors of the device, and the invocations that saturate one of them.
_PROCESSORS = 132
_BUSY = 256

#: Multiplications of a multiprocessor during the latency of a slice, and of a dispatch; and of all of them during the access to a byte.
_SLICE_WAIT = 8_000
_DISPATCH_WAIT = 500_000
_BYTE = 8

#: Below this many multiplications loops are unrolled less: fetching and compiling long shaders costs more than it saves.
LITTLE = 1 << 29

#: Up to this many workgroups per multiprocessor, their number is rounded up to full waves.
_ROUNDS = 4

#: Tiles for dtypes with vectors, and the fraction of peak speed that each reaches.
_VECTORS = (
    (Schedule(64, 128, 16, 8, 8), 0.94),
    (Schedule(128, 64, 16, 8, 8), 0.94),
    (Schedule(128, 128, 8, 8, 16, lane_rows=2, lane_columns=16), 0.92),
    (Schedule(128, 128, 8, 16, 8, twice=True), 0.9),
    (Schedule(64, 128, 8, 8, 8), 0.89),
    (Schedule(128, 128, 16, 8, 8), 0.87),
    (Schedule(64, 64, 16, 8, 8), 0.89),
    (Schedule(64, 64, 8, 8, 8), 0.88),
    (Schedule(64, 128, 16, 8, 4), 0.86),
    (Schedule(128, 64, 16, 8, 4), 0.85),
    (Schedule(64, 64, 16, 8, 4), 0.84),
    (Schedule(32, 64, 16, 8, 4), 0.78),
    (Schedule(32, 64, 16, 4, 8), 0.70),
    (Schedule(32, 64, 16, 4, 4), 0.60),
    (Schedule(32, 32, 16, 4, 4), 0.52),
    (Schedule(16, 64, 32, 4, 4), 0.48),
    (Schedule(16, 32, 32, 4, 4), 0.40),
    (Schedule(16, 128, 16, 4, 8), 0.55),
    (Schedule(4, 256, 16, 4, 4), 0.3),
    (Schedule(4, 128, 32, 4, 4), 0.3),
    (Schedule(64, 16, 32, 4, 4), 0.48),
)
#: The same for other dtypes.
_SINGLES = ((Schedule(32, 32, 16, 4, 4), 0.5), (Schedule(32, 32, 8, 4, 4), 0.45), (Schedule(16, 16, 16, 2, 2), 0.3))

#: Variations to be timed on large contractions.
_VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"band": 4},
    {"band": 16},
    {"band": 1},
    {"unroll": 8},
    {"unroll": 4},
    {"twice": True},
    {"once": True},
    {"lane_rows": 8, "lane_columns": 4},
    {"lane_rows": 2, "lane_columns": 16},
    {"pad": 0},
    {"pad": 2},
    {"ahead": False},
    {"depth": 8},
    {"depth": 32},
)

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def candidates(
    c: IndexedContraction, work: Working, capabilities: TargetCapabilities, count: int = 8, deferred_work: int = 0
) -> list[Schedule]:
    """Return schedules that fit the device, the probably fastest first.

    There are at most two for each tile. `deferred_work`: see `choose`.
    """
    pairs = []
    little = c.products < LITTLE
    for tile, efficiency in _SINGLES if work.lanes == 1 else _VECTORS:
        schedule = replace(tile, unroll=4 if little else 0, once=little)
        splits = [n for n in _SPLITS if n == 1 or c.k >= 2 * schedule.depth * n]
        timed = [
            (_time(c, split, efficiency, deferred_work), split) for n in splits if (split := schedule.split(n)).fits(work, capabilities)
        ]
        pairs += sorted(timed, key=lambda pair: pair[0])[:2]
    return [schedule for _, schedule in sorted(pairs, key=lambda pair: pair[0])[:count]]


def choose(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, deferred_work: int = 0) -> Schedule:
    """Return the schedule measured to be fastest, or the one estimated to be.

    If the product is deferred to run in one dispatch with others, `deferred_work` counts the multiplications of all of them.
    """
    if deferred_work:
        return candidates(c, work, capabilities, 1, deferred_work)[0]
    return remembered(c, work, capabilities) or candidates(c, work, capabilities, 1)[0]


def variations(schedule: Schedule, work: Working, capabilities: TargetCapabilities) -> list[Schedule]:
    """Return schedules with the same tile that differ in details."""
    schedules = [replace(schedule, **details) for details in _VARIATIONS]
    return [x for x in schedules if x.fits(work, capabilities)]


def _time(c: IndexedContraction, schedule: Schedule, efficiency: float, deferred_work: int) -> float:
    """Estimate the time of a schedule, in multiplications of one multiprocessor."""
    groups, terms = schedule.groups(c), schedule.chunk(c)
    adding = 2 * schedule.splits * c.batch * c.m * c.n * 4 * _BYTE / _PROCESSORS + _DISPATCH_WAIT if schedule.splits > 1 else 0.0
    if deferred_work:  # all multiprocessors are busy until the end, unless one workgroup takes longer
        busy = efficiency * schedule.invocations / _BUSY
        alone = terms / schedule.depth * _SLICE_WAIT + schedule.rows * schedule.columns * terms / busy
        return max(deferred_work / _PROCESSORS / efficiency, alone) + adding
    rounds = groups / _PROCESSORS
    each = ceil(rounds) if rounds <= _ROUNDS else rounds + 0.5  # with many, multiprocessors that finish early start others
    together = min(each, max(1, 512 // schedule.invocations))
    busy = min(1.0, together * schedule.invocations / _BUSY)
    work = each * schedule.rows * schedule.columns * terms / (efficiency * busy)
    waits = ceil(each / together) * (terms / schedule.depth) * _SLICE_WAIT
    return work + waits + adding


# Select the algorithm of a contraction.
#
# `direct` has three for those that tiles would compute slowly, and tells when they pay; everything else is tiled.


class ProductOptions(NamedTuple):
    """Choices of a contraction's routine that are forced; None: the routine's own."""

    #: "few terms", "few results", "thin" or "tiled", which needs a schedule.
    algorithm: str | None = None
    schedule: Schedule | None = None
    #: Whether the operands are swapped.
    swapped: bool | None = None


DEFAULT_OPTIONS = ProductOptions()

#: Schedules of tests: all forms of tiles, small ones, so that small products have several.
_SCHEDULES = (
    Schedule(32, 32, 16, 4, 4),
    Schedule(16, 16, 8, 4, 4, band=1),
    Schedule(16, 32, 8, 4, 8, lane_rows=2, lane_columns=16, pad=0),
    Schedule(16, 16, 8, 4, 4, ahead=False),
    Schedule(16, 16, 8, 4, 4, twice=True, unroll=4),
    Schedule(16, 16, 8, 4, 4, once=True, brief=True, unroll=2, ahead=False),
    Schedule(16, 16, 8, 4, 4, splits=2),
    Schedule(16, 16, 8, 4, 4, splits=3, twice=True),
    Schedule(4, 128, 32, 4, 4),
)


def legal_options(c: IndexedContraction, capabilities: TargetCapabilities, may_split: bool) -> Iterator[ProductOptions]:
    """Yield the default options and their alternatives."""
    work = working(c.target.dtype)
    yield DEFAULT_OPTIONS
    if c.k:
        yield from (ProductOptions("few terms"), ProductOptions("few results"))
    if can_be_thin(c, work):
        yield ProductOptions("thin")
    yield from [ProductOptions("tiled", s) for s in _SCHEDULES if s.fits(work, capabilities) and (may_split or s.splits == 1)]


def contract(
    c: IndexedContraction,
    capabilities: TargetCapabilities,
    buffers: BufferNumbers,
    epilogue: Epilogue | None = None,
    *,
    may_split: bool = True,
    deferred_work: int = 0,
    alone: bool = False,
    options: ProductOptions = DEFAULT_OPTIONS,
) -> Routine:
    """Return the routine of a contraction with results.

    The epilogue gets rows and columns as they are in `c`. Sums are only split if `may_split` says that the device can bind all that adding
    them needs. `deferred_work`: see `choose`; `alone`: see `tiled`.
    """
    work, finish = working(c.target.dtype), epilogue or rounded(c.target.dtype)
    algorithm = options.algorithm or _algorithm(c, work)
    if algorithm == "few terms":
        return few_terms(c, work, capabilities, finish, buffers)
    if algorithm == "few results":
        return few_results(c, work, capabilities, finish, buffers)
    if algorithm == "thin":
        return thin(c, work, capabilities, finish, buffers, may_split=may_split)
    schedule = options.schedule or choose(c, work, capabilities, deferred_work)
    return tiled(c, work, schedule if may_split else schedule.split(1), capabilities, finish, buffers, alone=alone)


def _algorithm(c: IndexedContraction, work: Working) -> str:
    if is_of_few_terms(c):
        return "few terms"
    return "few results" if is_of_few_results(c) else "thin" if is_thin(c, work) else "tiled"


def is_tiled(c: IndexedContraction) -> bool:
    """Return whether a contraction is computed by tiles, which have schedules."""
    return _algorithm(c, working(c.target.dtype)) == "tiled"


def oriented(c: IndexedContraction) -> tuple[IndexedContraction, BufferNumbers]:
    """Return a contraction whose columns are the more contiguous axis of the results."""
    rows, columns = c.target.rows.strides, c.target.columns.strides
    if rows and (not columns or rows[-1] < columns[-1]):
        return c.swapped(), BufferNumbers().swapped()
    return c, BufferNumbers()


# Lower `dot_general` to a routine.


def dot_general(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine for operands of these types.

    None for dtypes that the device lacks, and for results without elements.
    """
    lhs, rhs = avals
    dtype = product_dtype("dot_general", lhs, rhs, params.get("preferred_element_type"))
    if not all(is_supported(d, capabilities) for d in (lhs.dtype, rhs.dtype, dtype)):
        return None
    c = of_problem(problem_of(lhs.shape, rhs.shape, params["dimension_numbers"], (lhs.dtype, rhs.dtype, dtype)))
    if c.batch * c.m * c.n == 0:
        return None
    c, buffers = oriented(c)
    return contract(c, capabilities, buffers)


# Lower kernels that are matrix products (see `compiler.contractions`).
#
# Operands are read through their index maps, and the kernel's elementwise operations on the sums are an epilogue in registers.


def computes_product(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return whether a kernel is a product whose operands can be read in place.

    Neighbouring invocations must read neighbouring elements.
    """
    product = contraction_of(kernel)
    if product is None:
        return False
    problem = product.problem()
    dtypes = problem.lhs.dtype, problem.rhs.dtype, problem.dtype
    return (
        all(is_supported(d, capabilities) for d in dtypes) and len({*map(kind, dtypes)}) == 1 and all(map(_is_contiguous, problem.operands))
    )


def is_small_product(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return whether a kernel is a product that leaves a GPU underused."""
    return math.prod(kernel.sizes) < LITTLE and computes_product(kernel, capabilities)


def _is_contiguous(operand: Operand) -> bool:
    """Return whether an operand is contiguous along an axis of the product."""
    return 1 in (*operand.inner.strides[-1:], *operand.outer.strides[-1:])


def contraction(
    kernel: Kernel, capabilities: TargetCapabilities, deferred_work: int = 0, options: ProductOptions = DEFAULT_OPTIONS
) -> Routine | None:
    """Return the routine of a kernel that is such a product; None for others."""
    if not computes_product(kernel, capabilities):
        return None
    product = _oriented_contraction(kernel, options.swapped)
    epilogue = KernelEpilogue(product)
    c, may_split = _indexed_contraction(product, epilogue), epilogue.may_split(capabilities)
    return contract(c, capabilities, epilogue.buffers, epilogue, may_split=may_split, deferred_work=deferred_work, options=options)


def finishing(product: Contraction, splits: int, capabilities: TargetCapabilities) -> Dispatch | None:
    """Return the dispatch that adds up partial sums, and applies the epilogue.

    None if the device cannot bind its buffers. The partial sums are an array [splits, batch, rows, columns] in the buffer after the
    kernel's results.
    """
    epilogue = KernelEpilogue(product)
    if not epilogue.may_split(capabilities):
        return None
    c = _indexed_contraction(product, epilogue)
    return sum_dispatch(c, working(c.target.dtype), splits, capabilities, epilogue, epilogue.buffers)


def contraction_options(kernel: Kernel, capabilities: TargetCapabilities) -> Iterator[ProductOptions]:
    """Yield the options that `contraction` takes for a kernel."""
    if not computes_product(kernel, capabilities):
        return
    for swapped in (None, True, False):
        product = _oriented_contraction(kernel, swapped)
        epilogue = KernelEpilogue(product)
        for options in legal_options(_indexed_contraction(product, epilogue), capabilities, epilogue.may_split(capabilities)):
            if swapped is not None or options == DEFAULT_OPTIONS:
                yield options._replace(swapped=swapped)


def split_k(kernel: Kernel, capabilities: TargetCapabilities) -> int:
    """Return the split-K factor of a kernel; 1 if it is no product."""
    if not computes_product(kernel, capabilities):
        return 1
    product = _oriented_contraction(kernel, None)
    c = _indexed_contraction(product, KernelEpilogue(product))
    return choose(c, working(c.target.dtype), capabilities).fitted(c).splits if is_tiled(c) else 1


def _indexed_contraction(product: Contraction, epilogue: KernelEpilogue) -> IndexedContraction:
    """Return the contraction as schedules see it."""
    inputs, problem = product.kernel.inputs, product.problem()
    lhs, rhs = [
        OperandMap(side.dtype, inputs[load.input].size, side.start, side.stack, side.outer, side.inner)
        for side, load in zip(problem.operands, (product.lhs, product.rhs), strict=True)
    ]
    return IndexedContraction(lhs, rhs, epilogue.target())


def _oriented_contraction(kernel: Kernel, swapped: bool | None) -> Contraction:
    product = contraction_of(kernel)
    assert product is not None
    return product.oriented(swapped)


class KernelEpilogue:
    """The epilogue of a kernel that is a contraction: its operations on the sums."""

    def __init__(self, product: Contraction) -> None:
        self.product = product
        kernel, self.inputs = product.epilogue()
        self.analysis = KernelAnalysis(kernel)
        #: The node that loads a sum.
        self.total = next(n for n, node in enumerate(kernel.nodes) if isinstance(node, Load) and node.input == 0)

    @property
    def buffers(self) -> BufferNumbers:
        """The buffers of the kernel: its inputs, its results, and a workspace."""
        product, count = self.product, len(self.product.kernel.inputs)
        return BufferNumbers(product.lhs.input, product.rhs.input, count, count + len(product.kernel.stores))

    def may_split(self, capabilities: TargetCapabilities) -> bool:
        """Return whether the device can bind partial sums and the kernel's buffers."""
        return len({*self.inputs}) + len(self.product.kernel.stores) + 1 <= capabilities.buffers

    def target(self) -> ResultMap:
        """Return where the first result's elements are."""
        kernel, offset = self.product.kernel, self.analysis.store_offsets[0]
        steps = dict(offset.terms)

        def walk(axes: Axes) -> Walk:
            return merged([kernel.sizes[a] for a in axes], [[steps.get(a, 0) for a in axes]])[0]

        walks = [walk(axes) for axes in (self.product.batch, self.product.rows, self.product.columns)]
        return ResultMap(kernel.nodes[self.product.total].dtype, kernel.outputs[0].size, offset.offset, *walks)

    def __call__(self, f: Shader, work: Working, c: IndexedContraction, number: int, lanes: int) -> ResultStore:
        """Declare the results; see `Epilogue`."""
        product, sizes = self.product, self.product.kernel.sizes
        columns = tuple([sizes[a] for a in product.columns])
        together = LANES if lanes == LANES and columns[-1] % LANES == 0 else 1
        span = AxisSpan(product.columns, columns, together)
        outputs = tuple(range(number, number + len(product.kernel.stores)))
        nest = bind_kernel(f, self.analysis, (span,), Buffers((-1, *self.inputs), outputs), absent=(0,))

        def store(at: SumIndex, sums: Sequence[str]) -> None:
            axes: dict[int, Texts] = {}
            for names, index in ((product.batch, at.stack), (product.rows, at.row)):
                axes |= {a: (text,) for a, text in zip(names, f.digits(index, [sizes[a] for a in names]), strict=True)}
            group = at.column if together == 1 else f.let("u32", f"{at.column} / {LANES}u")
            here = LaneScope(nest, None, axes).child(span.bind(f, group), span)
            here.values[self.total] = tuple([work.convert_sum(f, x, c.target.dtype) for x in sums])
            for s in range(len(outputs)):
                here.store(s)

        return ResultStore(together, store)


# Time schedules on the device, check their results, and remember the fastest.

#: The plain schedule whose results are the reference.
SIMPLE = Schedule(32, 32, 8, 4, 4, ahead=False, unroll=4)

#: Terms of a sum that is accurate enough for a reference.
_LONGEST = 1 << 14

#: Runs a routine on flat operands, given the number and dtype of the result's elements; returns the result and the seconds.
Trial = Callable[[Routine, Sequence[np.ndarray], int, np.dtype], tuple[np.ndarray, float]]


class Timing(NamedTuple):
    """The time of a schedule."""

    seconds: float
    schedule: Schedule


def timings(
    c: IndexedContraction,
    work: Working,
    capabilities: TargetCapabilities,
    schedules: Iterable[Schedule],
    trial: Trial,
    buffers: BufferNumbers | None = None,
) -> list[Timing]:
    """Return the times of schedules, of which the first is trusted.

    Those whose results differ from its results (up to rounding) are left out.
    """
    buffers = buffers or BufferNumbers()
    rng = np.random.default_rng(0)
    sides = sorted([(buffers.lhs, c.lhs), (buffers.rhs, c.rhs)], key=lambda side: side[0])
    operands = [_random_numbers(rng, side.elements, side.dtype) for _, side in sides]
    measurements: list[Timing] = []
    trusted: np.ndarray | None = None
    for schedule in schedules:
        routine = tiled(c, work, schedule, capabilities, rounded(c.target.dtype), buffers)
        result, seconds = trial(routine, operands, c.target.elements, c.target.dtype)
        trusted = result if trusted is None else trusted
        if _alike(result, trusted, c.k):
            measurements.append(Timing(seconds, schedule))
    return sorted(measurements, key=lambda timing: timing.seconds)


def _random_numbers(rng: np.random.Generator, size: int, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 2, size).astype(dtype) if dtype.kind in "iub" else rng.standard_normal(size, np.float32).astype(dtype)


def _alike(x: np.ndarray, y: np.ndarray, terms: int) -> bool:
    if x.dtype.kind in "iub":
        return bool((x == y).all())
    wide = np.complex128 if x.dtype.kind == "c" else np.float32
    coarse = 1e-2 if x.dtype.itemsize < 4 else 1e-5
    return bool((np.abs(x.astype(wide) - y.astype(wide)) <= coarse * max(terms, 16) ** 0.5 * 4).all())


def shortlist(c: IndexedContraction, work: Working, capabilities: TargetCapabilities, count: int = 8) -> list[Schedule]:
    """Return the schedules to be timed.

    The first is a plain one, whose results are the reference; the others are the best by estimate.
    """
    return [SIMPLE.split(max(1, -(-c.k // _LONGEST))), *candidates(c, work, capabilities, count)]


def tune(
    c: IndexedContraction,
    work: Working,
    capabilities: TargetCapabilities,
    trial: Trial,
    buffers: BufferNumbers | None = None,
    path: Path | None = None,
    count: int = 8,
) -> list[Timing]:
    """Time schedules and remember the fastest, also in a file if its path is given."""
    measurements = timings(c, work, capabilities, shortlist(c, work, capabilities, count), trial, buffers)
    best: Choices = {capabilities.adapter: {class_of(c): measurements[0].schedule}}
    record_schedules(best)
    if path is not None:
        choices = read_schedules(path)
        choices.setdefault(capabilities.adapter, {}).update(best[capabilities.adapter])
        write_schedules(path, choices)
    return measurements
