"""Attention, recognised from a softmax and the products around it."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.passes.attention.patterns import (
    Logits,
    Lookup,
    Matrix,
    Result,
    Side,
    logits_of,
    matrix_of,
    product_of,
    sides,
    softmax_operand,
)
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, Equation
from volta_fn.primitives.attention import Axes


class Match(NamedTuple):
    """The variables of a program that play the roles of attention."""

    logits: Logits
    q: Matrix
    k: Matrix
    v: Matrix
    out: Result

    @property
    def operands(self) -> list[Atom]:
        """The operands of the attention equation."""
        return [self.q.atom, self.k.atom, self.v.atom, *([] if self.logits.mask is None else [self.logits.mask])]


def match(program: Lookup, division: Equation) -> Match | None:
    """Return the attention whose weights a division computes, and only it needs."""
    x = softmax_operand(program, division)
    logits = None if x is None else logits_of(program, x)
    found = None if logits is None else product_of(program, logits.product)
    consumers = [*program.final_consumers(division.outvars[0])]
    if logits is None or found is None or len(consumers) != 1 or consumers[0] is None:
        return None
    shape, made, (rows, columns) = division.outvars[0].aval.shape, _rows_first(*found), found[1]
    q = _queries(program, rows, shape, made)
    k = matrix_of(program, columns.atom, columns.by_rows(True))
    eqn, weights = consumers[0]
    pair = sides(eqn) if eqn.primitive.name == "dot_general" else None
    if q is None or pair is None:
        return None
    transposed = pair[1].atom is weights
    own, other = pair[::-1] if transposed else pair
    if own.atom.aval.shape != made or own.batch != tuple(range(len(made) - 2)) or own.contracted != len(made) - 1:
        return None
    return Match(logits, q, k, matrix_of(program, other.atom, other.by_rows(False)), Result(eqn, transposed))


def _queries(program: Lookup, side: Side, shape: Shape, made: Shape) -> Matrix | None:
    """Return the queries, with heads as weights have them.

    Heads that share one of keys may be one long head in the products, whose shape `made` then differs from the weights'.
    """
    atom, axes = side.atom, side.by_rows(True)
    if len(made) != len(shape) or len(made) < 3:
        return None
    if made != shape:
        (*lead, groups, long, s), (*same, heads, t, keys) = made, shape
        if lead != same or s != keys or not groups or heads % groups or long != heads // groups * t:
            return None
        plain = Axes(tuple(range(len(shape) - 2)), len(shape) - 2, len(shape) - 1)
        eqn = program.producer(atom, "reshape")
        if axes != plain or eqn is None or eqn.invars[0].aval.shape[:-1] != shape[:-1]:
            return None
        atom = eqn.invars[0]
    return matrix_of(program, atom, axes)


def _rows_first(product: Equation, pair: tuple[Side, Side]) -> Shape:
    """Return the shape of a product whose rows are those of the first of a pair."""
    *lead, rows, columns = product.outvars[0].aval.shape
    return (*lead, rows, columns) if pair[0].atom is product.invars[0] else (*lead, columns, rows)


def attends(found: Match) -> bool:
    """Return True for floats of one dtype, which routines for attention exist for."""
    kinds = {m.atom.aval.dtype for m in (found.q, found.k, found.v)}
    narrow = found.logits.product.aval.dtype.itemsize <= 4 and kinds.pop().name in ("float32", "float16", "bfloat16")
    return narrow and not kinds and all(m.atom.aval.size for m in (found.q, found.k, found.v))
