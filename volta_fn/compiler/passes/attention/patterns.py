"""The patterns of attention: softmax, its derivative, logits, and matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.nodes import DefUse
from volta_fn.compiler.passes.rewriting import numbers_of
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.primitives.attention import Axes

#: Less than any logit to be expected, so that its weight is negligible.
_LEAST_LOGIT = -0.7 * float(np.finfo(np.float32).max)

#: Dtypes of numbers along an axis that do not wrap.
_INDICES = (np.dtype(np.int32), np.dtype(np.int64))


class Lookup(DefUse):
    """An index of a program, for matching patterns."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        super().__init__(closed.eqns)
        self.closed = closed
        self.outputs = {v for v in closed.jaxpr.outvars if isinstance(v, Var)}

    def before(self, atom: Atom, *names: str) -> Atom:
        """Return the atom from which equations of these names compute an atom."""
        while (eqn := self.producer(atom, *names)) is not None:
            atom = eqn.invars[0]
        return atom

    def before_changes(self, atom: Atom) -> Atom:
        """Return the atom that an atom is, under another shape or width of floats."""
        while (eqn := self.producer(atom, "reshape", "convert_element_type")) is not None and _is_change(eqn):
            atom = eqn.invars[0]
        return atom

    def final_consumers(self, var: Var) -> Iterator[tuple[Equation, Var] | None]:
        """Yield the consumers of a variable, each with the variable that it reads.

        Yield None if the variable is an output. Changes of shape, and of a float's width, are looked through.
        """
        if var in self.outputs:
            yield None
        for eqn in self.users(var):
            if _is_change(eqn):
                yield from self.final_consumers(eqn.outvars[0])
            else:
                yield eqn, var


def _is_change(eqn: Equation) -> bool:
    """Return True for a reshape, and for a conversion between floats."""
    floats = all(v.aval.dtype in dtypes.FLOATS for v in (*eqn.invars, *eqn.outvars))
    return eqn.primitive.name == "reshape" or (eqn.primitive.name == "convert_element_type" and floats)


def number(atom: Atom) -> float | None:
    """Return the value of a scalar literal."""
    value = numbers_of(atom.val) if isinstance(atom, Literal) else None
    return None if value is None or np.iscomplexobj(value) else float(value)


def softmax_operand(program: Lookup, division: Equation) -> Var | None:
    """Return the operand of the softmax that a division computes, if it computes one."""
    top, bottom = division.invars
    exponential = program.producer(top, "exp")
    total = program.producer(program.before(bottom, "reshape"), "reduce_sum")
    if exponential is None or total is None or total.invars[0] is not top or not _along_rows(total) or not _is_per_row(bottom, top):
        return None
    difference = program.producer(exponential.invars[0], "sub")
    if difference is None:
        return None
    x, shift = difference.invars
    same = isinstance(x, Var) and x.aval.shape == division.outvars[0].aval.shape
    return x if same and isinstance(x, Var) and _is_largest(program, shift, x) else None


def _along_rows(eqn: Equation) -> bool:
    return eqn.params["axes"] == (eqn.invars[0].aval.ndim - 1,)


def _is_per_row(atom: Atom, x: Atom) -> bool:
    """Return True if a reduction along rows of x broadcasts to its rows."""
    return atom.aval.shape == (*x.aval.shape[:-1], 1)


def _is_largest(program: Lookup, shift: Atom, x: Var) -> bool:
    """Return True if a shift is the largest element of each row.

    Or 0 where that is not finite.
    """
    if not _is_per_row(shift, x):
        return False
    shift = program.before(shift, "reshape", "stop_gradient")
    chosen = program.producer(shift, "select_n")
    finite = None if chosen is None else program.producer(chosen.invars[0], "is_finite")
    if chosen is not None and finite is not None:
        shift = program.before(chosen.invars[2], "reshape")
        if program.before(finite.invars[0], "reshape") is not shift or number(chosen.invars[1]) != 0:
            return False
    floor = program.producer(shift, "max")
    if floor is not None and number(floor.invars[1]) == -float("inf"):
        shift = floor.invars[0]
    largest = program.producer(shift, "reduce_max")
    return largest is not None and largest.invars[0] is x and _along_rows(largest)


class Side(NamedTuple):
    """An operand of a product, with one axis that is summed over and one free axis."""

    atom: Atom
    batch: tuple[int, ...]
    contracted: int
    free: int

    def by_rows(self, rows_are_free: bool) -> Axes:
        """Return its axes with rows free and features summed over, or the reverse."""
        return Axes(self.batch, *((self.free, self.contracted) if rows_are_free else (self.contracted, self.free)))


def sides(eqn: Equation) -> tuple[Side, Side] | None:
    """Return the operands of a product, if each has one axis of either kind."""
    contracted, batch = eqn.params["dimension_numbers"]
    found = []
    for atom, summed, stack in zip(eqn.invars, contracted, batch, strict=True):
        free = [a for a in range(atom.aval.ndim) if a not in summed and a not in stack]
        if len(summed) != 1 or len(free) != 1:
            return None
        found.append(Side(atom, tuple(stack), summed[0], free[0]))
    return found[0], found[1]


def product_of(program: Lookup, atom: Atom) -> tuple[Equation, tuple[Side, Side]] | None:
    """Return the product that an atom is, under another shape or width.

    Then return its operands: the one with the rows first, then the one with the columns.
    """
    atom = program.before_changes(atom)
    transposed = program.producer(atom, "transpose")
    shape, last = atom.aval.shape, atom.aval.ndim - 1
    if transposed is not None and transposed.params["permutation"] == (*range(last - 1), last, last - 1):
        shape = transposed.invars[0].aval.shape
        atom = program.before_changes(transposed.invars[0])
    else:
        transposed = None
    eqn = program.producer(atom, "dot_general")
    pair = sides(eqn) if eqn is not None and (transposed is None or atom.aval.shape == shape) else None
    return None if eqn is None or pair is None else (eqn, pair if transposed is None else pair[::-1])


class Matrix(NamedTuple):
    """An array, and the roles of its axes."""

    atom: Atom
    axes: Axes

    def size(self, axis: int) -> int:
        """Return the length of an axis."""
        return self.atom.aval.shape[axis]


def matrix_of(program: Lookup, atom: Atom, axes: Axes) -> Matrix:
    """Return an operand as it is before transposes."""
    while (eqn := program.producer(atom, "transpose")) is not None:
        order = eqn.params["permutation"]
        axes = Axes(tuple([order[a] for a in axes.heads]), order[axes.rows], order[axes.features])
        atom = eqn.invars[0]
    return Matrix(atom, axes)


class Result(NamedTuple):
    """A product whose result is replaced."""

    eqn: Equation
    #: Whether the result's last two axes are features and rows, not the reverse.
    transposed: bool

    @property
    def var(self) -> Var:
        """The result."""
        return self.eqn.outvars[0]


class Logits(NamedTuple):
    """The product of queries and keys, and what is applied to it."""

    product: Atom
    scale: float
    #: Where a query sees a key, as the program has it; logits elsewhere; and what that means: causal, or a mask.
    seen: Atom | None
    unseen: float
    causal: bool
    mask: Atom | None


def logits_of(program: Lookup, x: Var) -> Logits | None:
    """Return a variable as logits, if it may be logits."""
    seen, unseen, causal, mask = None, _LEAST_LOGIT, False, None
    value: Atom = x
    chosen = program.producer(value, "select_n")
    if chosen is not None:
        seen, other, value = chosen.invars[0], number(chosen.invars[1]), chosen.invars[2] if len(chosen.invars) == 3 else x
        if other is None or seen.aval.dtype != np.bool_ or value.aval.shape != x.aval.shape:
            return None
        causal, mask = _visible(program, seen, x.aval.shape[-2:])
        if causal and other > -1e30 and np.isfinite(other):  # not so small that causal blocks may be left out
            causal, mask = False, seen
        if not np.isfinite(other) and not (causal and mask is None and other < 0):  # a query might see nothing
            return None
        unseen = max(other, _LEAST_LOGIT)
    value, scale = unscaled(program, value)
    return Logits(value, scale, seen, unseen, causal, mask)


def unscaled(program: Lookup, x: Atom) -> tuple[Atom, float]:
    """Return a variable before it was multiplied by a number, and the number."""
    eqn = program.producer(x, "mul", "div")
    if eqn is not None:
        factor = number(eqn.invars[1])
        if factor is not None:
            return eqn.invars[0], factor if eqn.primitive.name == "mul" else 1 / factor
    return x, 1.0


def _visible(program: Lookup, seen: Atom, sizes: Shape) -> tuple[bool, Atom | None]:
    """Return whether query t sees keys up to t only, and the additional mask.

    There are `sizes` queries and keys.
    """
    chosen = program.producer(seen, "select_n")
    if chosen is not None and [number(v) for v in chosen.invars[1:]] == [0, 1]:
        seen = chosen.invars[0]
    if _is_causal(program, seen, sizes):
        return True, None
    both = program.producer(seen, "and")
    if both is not None:
        for one, other in (both.invars, both.invars[::-1]):
            if _is_causal(program, one, sizes):
                return True, other
    return False, seen


def _is_causal(program: Lookup, seen: Atom, sizes: Shape) -> bool:
    """Return True if matrices of these sizes compare indices: column <= row."""
    eqn = program.producer(seen, "le", "lt", "ge", "gt")
    if eqn is None or seen.aval.shape[-2:] != sizes:
        return False
    name = eqn.primitive.name
    low, high = eqn.invars if name in ("le", "lt") else eqn.invars[::-1]
    key, query = _index_along(program, low), _index_along(program, high)
    if key is None or query is None:
        return False
    most = query[1] - key[1] - (1 if name in ("lt", "gt") else 0)
    return (key[0], query[0], most) == (1, 2, 0) and all(n == 1 for n in seen.aval.shape[:-2])


def _index_along(program: Lookup, atom: Atom) -> tuple[int, int] | None:
    """Return an integer array as an axis, counted from the last as 1, plus a number.

    None if its elements are no indices along an axis. Narrow and unsigned integers might wrap.
    """
    eqn = program.producer(atom, "iota", "reshape", "broadcast_in_dim", "add", "sub", "convert_element_type")
    if eqn is None or atom.aval.dtype not in _INDICES:
        return None
    name, params = eqn.primitive.name, eqn.params
    if name == "iota":
        return atom.aval.ndim - params["dimension"], 0
    inner = eqn.invars[0].aval
    found = _index_along(program, eqn.invars[0])
    if found is None:
        return None
    axis, more = found
    if name in ("add", "sub"):
        step = number(eqn.invars[1])
        return None if step is None else (axis, more + int(step) if name == "add" else more - int(step))
    if name == "broadcast_in_dim":
        if inner.shape[-axis] != atom.aval.shape[params["broadcast_dimensions"][inner.ndim - axis]]:
            return None
        return atom.aval.ndim - params["broadcast_dimensions"][inner.ndim - axis], more
    if name == "reshape":
        long = [a for a, n in enumerate(atom.aval.shape) if n != 1]
        return (atom.aval.ndim - long[0], more) if len(long) == 1 and inner.size == inner.shape[-axis] else None
    return found
