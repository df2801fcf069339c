"""Convolutions as machine code.

All take correlations, the canonical form of `compiler.contractions`. In the order in which to read: `emission` (how operands are read,
groups of narrow numbers, indices in generated code, loops around register tiles, tiles of x that are contiguous in memory), `blocking`
(block sizes, several correlations in one routine, results from registers); then the algorithms: `igemm` (implicit GEMM), `direct`,
`winograd` and `winograd_weight_gradient`. Here follows the choice among them. Correlations of one tap are matrix products: outputs by
channels with channels by positions, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Correlation, Operand, Problem, correlations, fft_is_faster, merged
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.text import Module
from volta_fn.targets.cpu.convolution.blocking import NANOSECONDS, ROOM, CorrelationBuilder, assembled, write_zeros
from volta_fn.targets.cpu.convolution.direct import Direct, DirectPlan, direct_plans
from volta_fn.targets.cpu.convolution.emission import Elements, grouped_correlation
from volta_fn.targets.cpu.convolution.igemm import Igemm, igemm_plan
from volta_fn.targets.cpu.convolution.winograd import Scheme, Winograd, schemes_for, time_of, winograd_plan
from volta_fn.targets.cpu.convolution.winograd_weight_gradient import WinogradSums, WinogradSumsPlan, tilings_of
from volta_fn.targets.cpu.matmul.epilogues import StoreStrided
from volta_fn.targets.cpu.matmul.gemm import Gemm
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, compute_type, grouped_type, readable, type_of_groups
from volta_fn.targets.cpu.routine import Routine

#: Nanoseconds of a cycle, about.
_CYCLE = 1 / 2.7

#: The time of implicit GEMM as a multiple of its multiplications'.
_OVERHEAD = 1.3


def conv_general_dilated(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Generate the routine of a convolution; None if NumPy computes it.

    NumPy computes bools and complex numbers, operands or results without elements, and convolutions by Fourier transforms.

    Where the CPU has an instruction that sums groups of products (`matmul.groups`), convolutions of bfloat16 and of bytes use it if that is
    fastest. Its sums of bfloat16 are as those in float32, but for subnormal numbers, which it takes for 0.
    """
    lhs, rhs = avals
    algorithm, preferred = params.get("algorithm", "auto"), params["preferred_element_type"]
    y_dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred is None else np.dtype(preferred)
    work = compute_type(y_dtype)
    dtypes = (lhs.dtype, rhs.dtype, y_dtype)
    if work is None or not _is_supported(work, dtypes):
        return None
    problems = correlations(lhs.shape, rhs.shape, params)
    if 0 in lhs.shape or 0 in rhs.shape or not problems or any(0 in (c.images, c.positions) for c in problems):
        return None
    if algorithm == "fft" or (algorithm == "auto" and y_dtype.kind not in "iu" and any(map(_by_spectra, problems))):
        return None
    if algorithm in ("auto", "igemm") and len(problems) == 1 and is_product(problems[0], work):
        return product(problems[0], work, dtypes)
    module, builders, workspace = Module(), [], 0
    for number, c in enumerate(problems):
        x, w = Elements(work, lhs.dtype), Elements(work, rhs.dtype)
        builder = CorrelationBuilder(f"part{number}", module, c, work, x, w, y_dtype, ROOM // len(problems), workspace)
        if c.taps == 0:
            write_zeros(builder)
        else:
            writer = fastest(algorithms(builder), algorithm).writer()
            writer.write()
            builder = writer.builder
        workspace = builder.workspace
        builders.append(builder)
    return assembled(module, builders, workspace)


def _is_supported(work: ComputeType, dtypes: Sequence[np.dtype]) -> bool:
    if not all(map(readable, dtypes)) or work.boolean:
        return False
    if work.type in ("float", "double"):
        return not any(d.kind in "iub" for d in dtypes)
    return all(d.kind in "iu" and d.itemsize <= work.itemsize for d in dtypes)


def _by_spectra(c: Correlation) -> bool:
    """Return True if NumPy's Fourier transforms are likely to be faster."""
    x = (c.groups, c.images, c.channels, *(axis.size for axis in c.axes))
    w = (c.groups, c.outputs, c.channels, *(axis.taps for axis in c.axes))
    return fft_is_faster(x, w, (c.groups, c.images, c.outputs, *(axis.positions for axis in c.axes)))


class Algorithm(NamedTuple):
    """A plan to compute a correlation.

    Attributes:
        name: its name in a convolution's parameter `algorithm`.
        nanoseconds: the estimated time; infinite if it is not chosen unless it is asked for.
        writer: the constructor of the writer of its code.
    """

    name: str
    nanoseconds: float
    writer: Callable[[], Igemm | Winograd | WinogradSums | Direct]


def algorithms(builder: CorrelationBuilder, *, slow: bool = False) -> list[Algorithm]:
    """Return the algorithms that apply, with `slow` also those that are never fastest."""
    c, work = builder.c, builder.work
    candidates = []
    grouped = _by_groups(builder)
    for other in (False, True) if slow else (False,):
        for some in (grouped, builder) if grouped else (builder,):
            blocks = igemm_plan(some.c, some.work, builder.room, other=other)
            if blocks and (blocks.packed or not some.work.biased):
                time = inf if other else max(blocks.cycles * _CYCLE, some.c.products * NANOSECONDS * _OVERHEAD)
                candidates.append(Algorithm("igemm", time, partial(Igemm, some, blocks)))
    if work.type in ("float", "double"):
        for scheme in schemes_for(c, work):
            candidates.append(Algorithm("winograd", time_of(c, scheme), partial(_winograd, builder, scheme)))
        for tiling in tilings_of(c, work):
            candidates.append(Algorithm("winograd", tiling.nanoseconds, partial(_winograd_sums, builder, tiling)))
    full = 1.3 * c.outputs > -(-c.outputs // work.lanes) * work.lanes  # vectors along the outputs
    for plan in direct_plans(c, work) if builder.w.unchanged or _has_room_for_weights(builder) else []:
        candidates.append(Algorithm("direct", inf if full else plan.cycles * _CYCLE * 1.2, partial(_direct, builder, plan)))
    return candidates


def _by_groups(builder: CorrelationBuilder) -> CorrelationBuilder | None:
    """Return the builder of a correlation by groups of channels.

    None if no instruction sums their products, or if it does not pay.
    """
    work = type_of_groups((builder.x.dtype, builder.w.dtype), builder.y_dtype)
    if work is None or (grouped := grouped_correlation(builder.c, work, builder.x, builder.w)) is None:
        return None
    c, x, w = grouped
    return replace(builder, c=c, work=work, x=x, w=w)


def _with_wide_weights(builder: CorrelationBuilder) -> CorrelationBuilder:
    """Return a builder with w in the compute type, if there is room for it.

    That is for algorithms that read its elements several times, or with a stride.
    """
    return builder if builder.w.unchanged or not _has_room_for_weights(builder) else builder.with_wide_weights()


def _has_room_for_weights(builder: CorrelationBuilder) -> bool:
    return builder.weight_span * builder.work.itemsize <= builder.room // 4


def _direct(builder: CorrelationBuilder, plan: DirectPlan) -> Direct:
    builder = _with_wide_weights(builder)
    return Direct(builder, replace(plan, c=builder.c))


def _winograd_sums(builder: CorrelationBuilder, tiling: WinogradSumsPlan) -> WinogradSums:
    builder = _with_wide_weights(builder)
    return WinogradSums(builder, replace(tiling, c=builder.c))


def _winograd(builder: CorrelationBuilder, scheme: Scheme) -> Winograd:
    builder = _with_wide_weights(builder)
    return Winograd(builder, winograd_plan(builder.c, builder.work, scheme))


def fastest(candidates: Sequence[Algorithm], name: str) -> Algorithm:
    """Return the fastest candidate of an algorithm, or of all for "auto".

    If none applies, return implicit GEMM.
    """
    if name != "auto":
        candidates = [a for a in candidates if a.name == name] or [a for a in candidates if a.name == "igemm"]
    return min(candidates, key=lambda a: a.nanoseconds)


#: The numbers of the routine's buffers.
_X, _W, _Y, _WORKSPACE = range(4)

#: The least number of vectors of positions for which positions are the product's columns.
_VECTORS = 8


def is_product(c: Correlation, work: ComputeType) -> bool:
    """Return True if a correlation is best computed as a matrix product.

    It has one tap, positions that are one axis, and is contiguous along positions or along channels.
    """
    (axis, *others) = c.axes
    if others or axis.taps != 1 or not axis.inside or axis.low or axis.stride != 1 or c.y.offset:
        return False
    if _along_positions(c):
        return c.x.strides[3] == 1 and axis.positions >= _VECTORS * work.lanes
    return c.x.strides[2] == c.y.strides[2] == 1 and 1 in c.w.strides[1:3]


def _along_positions(c: Correlation) -> bool:
    return c.y.strides[3] == 1


def product(c: Correlation, work: ComputeType, dtypes: Sequence[np.dtype]) -> Routine:
    """Generate the routine of such a correlation, whose x, w and y have these dtypes."""
    positions, (xs, ws, ys) = c.axes[0].positions, (c.x.strides, c.w.strides, c.y.strides)
    if _along_positions(c):
        stacks = merged([c.groups, c.images], [xs[:2], (ws[0], 0), ys[:2]])
        (columns,) = merged([positions], [xs[3:]])
        rows, rows_y = merged([c.outputs], [[ws[1]], [ys[2]]])
    else:
        stacks = merged([c.groups], [xs[:1], ws[:1], ys[:1]])
        (columns,) = merged([c.outputs], [ws[1:2]])
        rows, rows_y = merged([c.images, positions], [(xs[1], xs[3]), (ys[1], ys[3])])
    inner = merged([c.channels], [xs[2:3], ws[2:3]])
    x = Operand(dtypes[0], stacks[0], columns if _along_positions(c) else rows, inner[0], c.x.offset)
    w = Operand(dtypes[1], stacks[1], rows if _along_positions(c) else columns, inner[1], c.w.offset)
    left, right = (w, _W), (x, _X)
    if not _along_positions(c):
        left, right = right, left
    problem = Problem(left[0], right[0], dtypes[2])
    store = StoreStrided(work, dtypes[2], stacks[2], rows_y, problem.n, _Y)
    return Gemm(grouped_type(problem) or work, problem, (left[1], right[1]), store, _WORKSPACE, "convolution").routine()
