"""A scan under change: the variables of its body, with those outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_fn.compiler.ir.views import is_product
from volta_fn.compiler.passes.effects import is_removable
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import AxisData
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.transforms.vmap import batch_jaxpr

#: Rows (and terms of a sum) beyond which a product gains no speed.
_MANY = 512

#: Bytes that may be stacked for the sake of speed; more only if the loop's operands and results take as much.
_LITTLE = 1 << 24


class Carry(NamedTuple):
    """A value of the carry: its variable and next value inside, both ends outside."""

    var: Var
    next: Atom
    start: Atom
    end: Var


@dataclass
class ScanView:
    """A scan that passes take equations out of."""

    eqn: Equation
    #: Variables of the body that are the same in every iteration, with their values outside.
    consts: dict[Var, Atom]
    carry: list[Carry]
    #: Variables of the body that are rows of stacked arrays, with these arrays.
    rows: dict[Var, Atom]
    #: The outputs of an iteration, and the stacked arrays of each.
    ys: list[tuple[Atom, Var]]
    eqns: list[Equation]
    #: Bytes that may still be stacked.
    budget: int

    @property
    def length(self) -> int:
        """The number of iterations."""
        return self.eqn.params["length"]

    @property
    def body(self) -> ClosedJaxpr:
        """The program of an iteration, as it was."""
        return self.eqn.params["jaxpr"]

    @property
    def given(self) -> list[Atom]:
        """The outputs of an iteration other than the carry."""
        return [out for out, _ in self.ys]

    @property
    def outputs(self) -> list[Atom]:
        """The outputs of the body."""
        return [*[c.next for c in self.carry], *self.given]

    def is_constant(self, atom: Atom) -> bool:
        """Return True if an operand in the body is known to be loop-invariant."""
        return isinstance(atom, Literal) or atom in self.consts or atom in self.body.jaxpr.constvars

    def stacked(self, var: Var) -> Var:
        """Return a new variable for the values of a variable in all iterations."""
        return Var(var.aval.update(shape=(self.length, *var.aval.shape)))

    def stack(self, var: Var) -> Atom:
        """Return the values of a variable in all iterations: known, or newly stacked."""
        if var in self.rows:
            return self.rows[var]
        for out, stacked in self.ys:
            if out is var:
                return stacked
        self.ys.append((var, self.stacked(var)))
        return self.ys[-1][1]

    def bytes_to_stack(self, variables: Iterable[Var]) -> int:
        """Return how much new memory stacking variables takes."""
        there: set[Atom] = {*self.rows, *self.given}
        return self.length * sum(map(size_of, {*variables} - there))

    def affords(self, size: int) -> bool:
        """Take bytes from the budget; return False if there are too few."""
        affordable = size <= self.budget
        self.budget -= max(size, 0) if affordable else 0
        return affordable

    def call(self, eqns: list[Equation], inputs: Sequence[Var], outputs: Sequence[Var], results: list[Var], name: str) -> Equation:
        """Return a call of equations of the body for all iterations at once.

        Inputs are constants, rows and outputs of the loop.
        """
        program = self.body.replace(invars=inputs, outvars=outputs, eqns=eqns)
        stacked = [v not in self.consts for v in inputs]
        batched, _ = batch_jaxpr(program, AxisData(None, self.length), stacked, [True] * len(outputs))
        operands = [self.consts[v] if v in self.consts else self.stack(v) for v in inputs]
        return Equation(jit_p, operands, results, call_params(batched, name), self.eqn.position)

    def live(self, outputs: Iterable[Atom], without: Iterable[Equation] = ()) -> set[Atom]:
        """Return what outputs of the body and its effects need, without some equations."""
        live, gone = {*outputs}, {*without}
        for eqn in reversed(self.eqns):
            if eqn not in gone and (not is_removable(eqn) or any(v in live for v in eqn.outvars)):
                live.update(eqn.invars)
        return live

    def drop_dead(self) -> None:
        """Drop equations whose results nothing needs, as what they read may have left."""
        live = self.live(self.outputs)
        self.eqns = [e for e in self.eqns if not is_removable(e) or any(v in live for v in e.outvars)]

    def joined(self) -> Equation:
        """Return the scan as it is now."""
        invars = [*self.consts, *[c.var for c in self.carry], *self.rows]
        body = self.body.replace(invars=invars, outvars=self.outputs, eqns=self.eqns)
        params = {**self.eqn.params, "jaxpr": body, "num_consts": len(self.consts), "num_carry": len(self.carry)}
        operands = [*self.consts.values(), *[c.start for c in self.carry], *self.rows.values()]
        return self.eqn.replace(operands, [*[c.end for c in self.carry], *[stacked for _, stacked in self.ys]], params)


def view_of(eqn: Equation) -> ScanView:
    """Return a scan as a view to be changed."""
    jaxpr, consts, carry = eqn.params["jaxpr"].jaxpr, eqn.params["num_consts"], eqn.params["num_carry"]
    first, last = slice(consts), slice(consts, consts + carry)
    rows = slice(consts + carry, None)
    carries = map(Carry, jaxpr.invars[last], jaxpr.outvars[:carry], eqn.invars[last], eqn.outvars[:carry])
    return ScanView(
        eqn,
        dict(zip(jaxpr.invars[first], eqn.invars[first], strict=True)),
        list(carries),
        dict(zip(jaxpr.invars[rows], eqn.invars[rows], strict=True)),
        list(zip(jaxpr.outvars[carry:], eqn.outvars[carry:], strict=True)),
        list(jaxpr.eqns),
        max(sum(map(size_of, [*eqn.invars, *eqn.outvars])), _LITTLE),
    )


def size_of(atom: Atom) -> int:
    """Return the bytes of a value."""
    return atom.aval.size * atom.aval.dtype.itemsize


def is_thin_product(eqn: Equation, constant: Sequence[bool]) -> bool:
    """Return True for a product of few rows of a changing and a constant operand."""
    if not is_product(eqn) or constant[0] is constant[1]:
        return False
    side = constant.index(False)
    contracted, batch = eqn.params["dimension_numbers"]
    rows = eqn.invars[side].aval.size
    for axis in (*contracted[side], *batch[side]):
        rows //= max(eqn.invars[side].aval.shape[axis], 1)
    return rows < _MANY


def has_few_terms(eqn: Equation) -> bool:
    """Return True if each element of a product's result is a sum of few products."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    terms = 1
    for axis in contracted:
        terms *= eqn.invars[0].aval.shape[axis]
    return terms < _MANY
