"""Sums between processes that overlap with computation.

A `psum` of several arrays is split: a sum starts right after the last of its operands is computed (`psum_start`), and is awaited
before its results are first read (`psum_done`), if there is something to compute in between. Operands that are computed one after
another share a start until they have `_BUCKET` bytes. All processes run the same program, so all start the same sums in the same
order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.passes.dce import COLLECTIVES
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, program_cache
from volta_fn.primitives.call import attention_p
from volta_fn.primitives.collectives.exchanges import psum_done_p, psum_p, psum_start_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.convolution import conv_general_dilated_p
from volta_fn.primitives.fourier import fft_p
from volta_fn.primitives.window import reduce_window_max_p, reduce_window_sum_p

#: Bytes of a sum that is started by itself: fewer take little longer than none.
_BUCKET = 1 << 18
#: Elements of a result from which computing it takes longer than starting a sum, and operations that always do.
_MANY = 1 << 16
_SLOW_PRIMITIVES = frozenset(
    [dot_general_p, conv_general_dilated_p, scan_p, while_p, reduce_window_sum_p, reduce_window_max_p, fft_p, attention_p]
)


class _Sum(NamedTuple):
    """Operands of a `psum` that are summed together."""

    operands: list[int]
    #: The number of the equation before which it starts, and of the one before which it is awaited.
    start: int
    done: int


@program_cache
def overlap_sums(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Split sums between processes into starts and waits."""
    eqns = closed.eqns
    if not any(eqn.primitive is psum_p for eqn in eqns):
        return closed
    definitions = {v: number for number, eqn in enumerate(eqns) for v in eqn.outvars}
    first_reads = _first_reads(closed)
    #: The starts and waits before an equation, and what stands in place of a `psum`, by the number of the equation.
    starts: dict[int, list[Equation]] = {}
    waits: dict[int, list[Equation]] = {}
    replacements: dict[int, list[Equation]] = {}
    for number, eqn in enumerate(eqns):
        if eqn.primitive is not psum_p:
            continue
        overlapped = [s for s in _sums(eqn, definitions, first_reads, len(eqns)) if _is_long(eqns[s.start : s.done])]
        for partial_sum in overlapped:
            # A ticket leads from the equation that starts the sum to the one that waits for it.
            outs = [eqn.outvars[i] for i in partial_sum.operands]
            ticket = Var(ShapedArray((), np.dtype(np.int32)))
            start = Equation(psum_start_p, [eqn.invars[i] for i in partial_sum.operands], [ticket], eqn.params, eqn.position)
            wait = Equation(psum_done_p, [ticket], outs, {"result_avals": tuple([v.aval for v in outs])}, eqn.position)
            starts.setdefault(partial_sum.start, []).append(start)
            waits.setdefault(partial_sum.done, []).append(wait)
        operands = {i for s in overlapped for i in s.operands}
        if operands:
            replacements[number] = _remaining_sum(eqn, [i for i in range(len(eqn.invars)) if i not in operands])
    if not replacements:
        return closed
    result: list[Equation] = []
    for number in range(len(eqns) + 1):
        result += starts.get(number, []) + waits.get(number, [])
        result += replacements.get(number, eqns[number : number + 1])
    return closed.replace(eqns=result)


def _first_reads(closed: ClosedJaxpr) -> dict[Atom, int]:
    """Return the number of the equation that reads each variable first."""
    first_reads: dict[Atom, int] = {}
    for number, eqn in enumerate(closed.eqns):
        for atom in eqn.invars:
            if isinstance(atom, Var):
                first_reads.setdefault(atom, number)
    return first_reads


def _sums(eqn: Equation, definitions: dict[Var, int], first_reads: dict[Atom, int], end: int) -> list[_Sum]:
    """Group operands by when they are computed."""
    positions = [definitions.get(v, -1) + 1 if isinstance(v, Var) else 0 for v in eqn.invars]
    groups: list[list[int]] = []
    size = 0
    for i in sorted(range(len(positions)), key=positions.__getitem__):
        if not groups or size >= _BUCKET:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += eqn.invars[i].aval.size * eqn.invars[i].aval.dtype.itemsize
    return [_Sum(g, max([positions[i] for i in g]), min([first_reads.get(eqn.outvars[i], end) for i in g])) for g in groups]


def _is_long(eqns: Sequence[Equation]) -> bool:
    """Return True if computing these equations takes longer than starting a sum."""
    computed = [eqn for eqn in eqns if eqn.primitive not in COLLECTIVES]
    return sum([math.inf if e.primitive in _SLOW_PRIMITIVES else sum([v.aval.size for v in e.outvars]) for e in computed]) >= _MANY


def _remaining_sum(eqn: Equation, operands: Sequence[int]) -> list[Equation]:
    """Return the `psum` of the operands whose sums do not overlap, if there are any."""
    if not operands:
        return []
    return [eqn.replace([eqn.invars[i] for i in operands], [eqn.outvars[i] for i in operands])]
