"""Reductions: one step of combining, and combining the lanes of a register."""

from __future__ import annotations

from volta_fn.core.primitive import Reduction
from volta_fn.runtime.llvm.text import Function, element_of, i64
from volta_fn.targets.cpu.scalars.number import Number
from volta_fn.targets.cpu.scalars.operations import apply
from volta_fn.targets.cpu.scalars.values import Lanes


def combine(f: Function, reduction: Reduction, x: Number, y: Number) -> Number:
    """Combine lane by lane, as a step of a reduction.

    NaN wins against anything in maxima and minima.
    """
    return apply(f, reduction.step, (x, y), x.dtype, {})


def horizontal(f: Function, reduction: Reduction, x: Number) -> Number:
    """Combine the lanes, a power of two of them, by halves."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = combine(f, reduction, _taken(f, x, 0, half), _taken(f, x, half, half))
    return x


def _taken(f: Function, x: Number, start: int, count: int) -> Number:
    if count == 1:
        element = [f.let(element_of(p.type), f"extractelement {p}, {i64(start)}") for p in x.components]
        return Number(x.dtype, tuple(element))
    return Number(x.dtype, tuple([Lanes(f, p).taken(range(start, start + count)).value for p in x.components]))
