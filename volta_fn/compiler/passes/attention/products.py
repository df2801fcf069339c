"""Products of stacks of matrices, and which axes of their operands are what."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.ir.attention import Axes
from volta_fn.compiler.passes.attention.program import Program
from volta_fn.core.jaxpr import Atom, Equation, Var


class Side(NamedTuple):
    """An operand of a product: its axes, of which one is summed over and one is free."""

    atom: Atom
    batch: tuple[int, ...]
    contracted: int
    free: int

    def by_rows(self, rows_are_free: bool) -> Axes:
        """Its axes if rows are free and features summed over, or the other way round."""
        return Axes(self.batch, *((self.free, self.contracted) if rows_are_free else (self.contracted, self.free)))


def sides(eqn: Equation) -> tuple[Side, Side] | None:
    """The operands of a product, if each has one axis of either kind."""
    contracted, batch = eqn.params["dimension_numbers"]
    found = []
    for atom, summed, stack in zip(eqn.invars, contracted, batch, strict=True):
        free = [a for a in range(atom.aval.ndim) if a not in summed and a not in stack]
        if len(summed) != 1 or len(free) != 1:
            return None
        found.append(Side(atom, tuple(stack), summed[0], free[0]))
    return found[0], found[1]


def product_of(program: Program, atom: Atom) -> tuple[Equation, tuple[Side, Side]] | None:
    """The product that an atom is, under another shape or dtype, and its operands: that with the rows first, then that with the columns."""
    changes = "reshape", "convert_element_type"
    atom = program.behind(atom, *changes)
    transposed = program.maker(atom, "transpose")
    last = atom.aval.ndim - 1
    if transposed is not None and transposed.params["permutation"] == (*range(last - 1), last, last - 1):
        atom = program.behind(transposed.invars[0], *changes)
    else:
        transposed = None
    eqn = program.maker(atom, "dot_general")
    pair = None if eqn is None else sides(eqn)
    return None if eqn is None or pair is None else (eqn, pair if transposed is None else pair[::-1])


class Matrix(NamedTuple):
    """An array and which of its axes are what."""

    atom: Atom
    axes: Axes

    def size(self, axis: int) -> int:
        """How long an axis is."""
        return self.atom.aval.shape[axis]


def matrix_of(program: Program, atom: Atom, axes: Axes) -> Matrix:
    """An operand as it is before it was transposed."""
    while (eqn := program.maker(atom, "transpose")) is not None:
        order = eqn.params["permutation"]
        axes = Axes(tuple([order[a] for a in axes.heads]), order[axes.rows], order[axes.features])
        atom = eqn.invars[0]
    return Matrix(atom, axes)


class Result(NamedTuple):
    """A product whose result is replaced: its equation, and whether the result's last two axes are features and rows, not the reverse."""

    eqn: Equation
    transposed: bool

    @property
    def var(self) -> Var:
        """The result."""
        return self.eqn.outvars[0]
