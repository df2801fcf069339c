"""Reductions: one step of combining."""

from __future__ import annotations

from volta_fn.core.primitive import Reduction
from volta_fn.targets.wgsl.scalars.number import Number, kind
from volta_fn.targets.wgsl.scalars.operations import apply
from volta_fn.targets.wgsl.scalars.values import Lanes
from volta_fn.targets.wgsl.text import Function

#: A number and where it is: what argmax and argmin combine.
Indexed = tuple[Number, Number]


def combine(f: Function, reduction: Reduction, x: Number, y: Number) -> Number:
    """Combine two numbers, as a step of a reduction.

    NaN wins against anything in maxima and minima.
    """
    return apply(f, reduction.step, (x, y), x.dtype, {})


def combine_indexed(f: Function, reduction: Reduction, x: Indexed, y: Indexed) -> Indexed:
    """Return the number that wins a step of ``argmax`` or ``argmin``, and its index.

    Of equal ones, and of NaNs, the first wins.
    """
    a, b = [Lanes(f, number.type, number.text) for number, _ in (x, y)]
    first = Lanes(f, y[1].type, y[1].text).below(Lanes(f, x[1].type, x[1].text))
    if kind(x[0].dtype) == "bool":
        better = ~a & b if reduction.step == "max" else a & ~b
        tie = ~(a ^ b)
    else:
        better, tie = b.above(a) if reduction.step == "max" else b.below(a), a.equals(b)
    if kind(x[0].dtype) == "float":
        a_nan, b_nan = a.is_nan(), b.is_nan()
        better, tie = better | (b_nan & ~a_nan), tie | (a_nan & b_nan)
    wins = (better | (tie & first)).text
    chosen = [Number(p.dtype, f.let(p.type, f"select({p.text}, {q.text}, {wins})")) for p, q in zip(x, y, strict=True)]
    return chosen[0], chosen[1]
