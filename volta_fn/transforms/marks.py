"""Lists with marks: which values are differentiated, unknown, linear or stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.primitive import Linear, Zero


def marked(values: Sequence[Any], marks: Sequence[bool], mark: bool = True) -> list[Any]:
    """Return the values whose mark is `mark`."""
    return [v for v, m in zip(values, marks, strict=True) if m is mark]


def merge(marks: Sequence[bool], where_true: Iterable[Any], where_false: Iterable[Any]) -> list[Any]:
    """Return values of one list where marked, and of the other elsewhere."""
    yes, no = iter(where_true), iter(where_false)
    return [next(yes) if m else next(no) for m in marks]


def is_nonzero(values: Sequence[Any]) -> list[bool]:
    """Mark the tangents or cotangents that are not symbolic zeros."""
    return [type(v) is not Zero for v in values]


def is_linear(args: Sequence[Any]) -> list[bool]:
    """Mark the arguments that a transpose rule is asked for."""
    return [type(a) is Linear for a in args]


def with_zeros(tangents: Iterable[Any], nonzero: Sequence[bool], primals: Sequence[Any]) -> list[Any]:
    """Return a tangent for each primal or aval: given where `nonzero`, else a `Zero`."""
    given = iter(tangents)
    return [next(given) if nz else Zero(getattr(p, "aval", p).at_least_vspace()) for nz, p in zip(nonzero, primals, strict=True)]


def split_tangents(flat: Sequence[Array], nonzero: Sequence[bool]) -> tuple[Sequence[Array], list[Any]]:
    """Split what a `jvp_jaxpr` returns into values and tangents."""
    outs = flat[: len(nonzero)]
    return outs, with_zeros(flat[len(nonzero) :], nonzero, outs)


def spread(cotangents: Iterable[Any], linear: Sequence[bool], given: Iterable[bool]) -> list[Any]:
    """Return a cotangent or None per operand; `given` marks the linear ones with one."""
    found, exists = iter(cotangents), iter(given)
    return [next(found) if is_linear and next(exists) else None for is_linear in linear]


def fixed_point(start: Sequence[bool], step: Callable[[list[bool]], tuple[Any, Sequence[bool]]]) -> tuple[Any, list[bool]]:
    """Repeat `step` until it marks no more of a loop's carry than it was given.

    `step` returns a result and the marks of the carry that comes out. Returns the last result, and the marks.
    """
    marks = list(start)
    while True:
        result, out = step(marks)
        grown = [m or o for m, o in zip(marks, out, strict=True)]
        if grown == marks:
            return result, marks
        marks = grown
