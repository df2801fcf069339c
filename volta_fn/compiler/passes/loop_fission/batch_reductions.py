"""Sums of products over the iterations of a scan, as products that sum over these.

The gradient of a matrix by which every iteration multiplies is such a sum: each iteration adds a product of few terms to a large matrix.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from volta_fn.compiler.ir.nodes import DefUse
from volta_fn.compiler.ir.views import is_product
from volta_fn.compiler.passes.loop_fission.scan_view import Carry, ScanView, has_few_terms, size_of
from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, Equation, Var
from volta_fn.core.staging import current_position, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.data_movement.movement import transpose
from volta_fn.primitives.elementwise.arithmetic import add


class _Term(NamedTuple):
    """A product, or a sum of elements, and the transposes of it that are added."""

    eqn: Equation
    permutations: tuple[tuple[int, ...], ...]

    def over_steps(self, operands: list[Array]) -> Array:
        """Return the sum over all iterations, of stacked operands."""
        token = current_position.set(self.eqn.position)
        try:
            found = bind(self.eqn.primitive, *operands, **_with_steps(self.eqn))
            for permutation in self.permutations:
                found = transpose(found, permutation)
            return found
        finally:
            current_position.reset(token)


class _Sum(NamedTuple):
    """A value of the carry that each iteration adds terms to."""

    carry: Carry
    terms: list[_Term]

    @property
    def operands(self) -> list[Var]:
        """The operands of the terms."""
        return [v for t in self.terms for v in t.eqn.invars if isinstance(v, Var)]


def sums_after(scan: ScanView) -> list[Equation]:
    """Move sums of products over the iterations out, to calls after the loop.

    Other sums of values that are stacked then follow them.
    """
    sums = _sums(scan)
    products = [s for s in sums if any(is_product(t.eqn) for t in s.terms)]
    size = scan.bytes_to_stack([v for s in products for v in s.operands])
    if not products or size > scan.length * sum(size_of(s.carry.var) for s in products) or not scan.affords(size):
        return []
    for var in [v for s in products for v in s.operands]:
        scan.stack(var)
    taken = [s for s in sums if s in products or not scan.bytes_to_stack(s.operands)]
    scan.carry = [c for c in scan.carry if not any(c is s.carry for s in taken)]
    scan.drop_dead()
    return [_after(scan, s) for s in taken]


def _after(scan: ScanView, found: _Sum) -> Equation:
    """Return a call that computes a sum."""

    def total(start: Array, *operands: Array) -> list[Array]:
        left = list(operands)
        for term in found.terms:
            count = len(term.eqn.invars)
            start = add(start, term.over_steps(left[:count]))
            del left[:count]
        return [start]

    operands = [found.carry.start, *map(scan.stack, found.operands)]
    program = trace_to_jaxpr(total, [v.aval for v in operands], "sums over a loop")
    return Equation(jit_p, operands, [found.carry.end], call_params(program, "sums over a loop"), scan.eqn.position)


def _with_steps(eqn: Equation) -> dict[str, object]:
    """Return the parameters of a product or sum that also sums over iterations.

    Operands are stacked along their first axis.
    """
    if not is_product(eqn):
        return {**eqn.params, "axes": (0, *[axis + 1 for axis in eqn.params["axes"]])}
    contracted, batch = [[tuple([axis + 1 for axis in axes]) for axes in sides] for sides in eqn.params["dimension_numbers"]]
    return {**eqn.params, "dimension_numbers": (tuple([(0, *axes) for axes in contracted]), tuple(batch))}


def _sums(scan: ScanView) -> list[_Sum]:
    """Return the values of the carry that only sum terms which nothing else needs."""
    reader = _Reader(scan)
    sums = [_Sum(carry, terms) for carry in scan.carry if (terms := reader.terms_of(carry))]
    kept = [c.next for c in scan.carry if not any(c is s.carry for s in sums)]
    live = scan.live([*kept, *scan.given])
    return [s for s in sums if not any(t.eqn.outvars[0] in live for t in s.terms)]


class _Reader:
    """Finds the terms of which the values of a body are sums."""

    def __init__(self, scan: ScanView) -> None:
        self.scan = scan
        self.index = DefUse(scan.eqns)
        self.uses = Counter([*[v for e in scan.eqns for v in e.invars], *scan.outputs])

    def terms_of(self, carry: Carry) -> list[_Term]:
        """Return what an iteration adds to a value of the carry; nothing if it does more."""
        addends = self._addends(carry.next, carry.var)
        terms = [self._term(v) for v in addends if v is not carry.var]
        known = [t for t in terms if t is not None]
        return known if carry.var in addends and self.uses[carry.var] == 1 and len(known) == len(terms) else []

    def _addends(self, atom: Atom, total: Var) -> list[Atom]:
        """Return the addends of an atom, as far as nothing else needs partial sums."""
        eqn = self.index.producer(atom)
        if eqn is None or eqn.primitive.name != "add" or self.uses[atom] > 1:
            return [atom]
        if any((v.aval.shape, v.aval.dtype) != (total.aval.shape, total.aval.dtype) for v in eqn.invars):
            return [atom]
        return [v for operand in eqn.invars for v in self._addends(operand, total)]

    def _term(self, atom: Atom) -> _Term | None:
        """Return a value as a term, if it is one."""
        permutations: list[tuple[int, ...]] = []
        eqn = self.index.producer(atom)
        while eqn is not None and eqn.primitive.name == "transpose":
            permutations.insert(0, eqn.params["permutation"])
            eqn = self.index.producer(eqn.invars[0])
        if eqn is None or any(self.scan.is_constant(v) for v in eqn.invars):
            return None
        summed = has_few_terms(eqn) if is_product(eqn) else eqn.primitive.name == "reduce_sum"
        return _Term(eqn, tuple(permutations)) if summed else None
