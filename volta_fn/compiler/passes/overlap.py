"""Sums between processes that overlap with computation.

A `psum` of several arrays is split: a sum starts right after the last of its operands is computed (`psum_start`), and is awaited before its
results are first read (`psum_done`), if there is something to compute in between. Operands that are computed one after another share a
start until they have `_BUCKET` bytes. All processes run the same program, so all start the same sums in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.passes.effects import COLLECTIVES
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, program_cache
from volta_fn.primitives.collectives.reductions import psum_done_p, psum_p, psum_start_p

#: Bytes of a sum that is started by itself: fewer take little longer than none.
_BUCKET = 1 << 18
#: Elements of a result from which computing it takes longer than starting a sum, and operations that always do.
_MANY = 1 << 16
_LONG = frozenset(["dot_general", "conv_general_dilated", "scan", "while", "reduce_window_sum", "reduce_window_max", "fft", "attention"])


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
    made = {v: number for number, eqn in enumerate(eqns) for v in eqn.outvars}
    read = _first_reads(closed)
    before: dict[int, list[Equation]] = {}
    after: dict[int, list[Equation]] = {}
    replaced: dict[int, list[Equation]] = {}
    for number, eqn in enumerate(eqns):
        if eqn.primitive is not psum_p:
            continue
        separate = [s for s in _sums(eqn, made, read, len(eqns)) if _is_long(eqns[s.start : s.done])]
        for one in separate:
            start, done = _in_two_steps(eqn, one)
            after.setdefault(one.start, []).append(start)
            before.setdefault(one.done, []).append(done)
        split = {i for s in separate for i in s.operands}
        if split:
            replaced[number] = _rest(eqn, [i for i in range(len(eqn.invars)) if i not in split])
    if not replaced:
        return closed
    found: list[Equation] = []
    for number in range(len(eqns) + 1):
        found += after.get(number, []) + before.get(number, [])
        found += replaced.get(number, eqns[number : number + 1])
    return closed.replace(eqns=found)


def _first_reads(closed: ClosedJaxpr) -> dict[Atom, int]:
    read: dict[Atom, int] = {}
    for number, eqn in enumerate(closed.eqns):
        for atom in eqn.invars:
            if isinstance(atom, Var):
                read.setdefault(atom, number)
    return read


def _sums(eqn: Equation, made: dict[Var, int], read: dict[Atom, int], end: int) -> list[_Sum]:
    """Group operands by when they are computed."""
    positions = [made.get(v, -1) + 1 if isinstance(v, Var) else 0 for v in eqn.invars]
    groups: list[list[int]] = []
    size = 0
    for i in sorted(range(len(positions)), key=positions.__getitem__):
        if not groups or size >= _BUCKET:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += eqn.invars[i].aval.size * eqn.invars[i].aval.dtype.itemsize
    return [_Sum(g, max([positions[i] for i in g]), min([read.get(eqn.outvars[i], end) for i in g])) for g in groups]


def _is_long(eqns: Sequence[Equation]) -> bool:
    """Return True if computing these equations takes longer than starting a sum."""
    computed = [eqn for eqn in eqns if eqn.primitive not in COLLECTIVES]
    return sum([math.inf if e.primitive.name in _LONG else sum([v.aval.size for v in e.outvars]) for e in computed]) >= _MANY


def _in_two_steps(eqn: Equation, one: _Sum) -> tuple[Equation, Equation]:
    outs = [eqn.outvars[i] for i in one.operands]
    ticket = Var(ShapedArray((), np.dtype(np.int32)))
    start = Equation(psum_start_p, [eqn.invars[i] for i in one.operands], [ticket], eqn.params, eqn.position)
    return start, Equation(psum_done_p, [ticket], outs, {"result_avals": tuple([v.aval for v in outs])}, eqn.position)


def _rest(eqn: Equation, operands: Sequence[int]) -> list[Equation]:
    """Return the sum of the operands that are not summed separately."""
    if not operands:
        return []
    return [eqn.replace([eqn.invars[i] for i in operands], [eqn.outvars[i] for i in operands])]
