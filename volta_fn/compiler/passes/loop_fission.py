"""Loop fission: matrix products that do not depend on the carry leave scans.

Products of scanned values are computed for all iterations at once. Sums of products over the iterations become products that sum over them.
A scan that stacks a carry both before and after each iteration stacks it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_fn.compiler.ir.index import can_be_kernel, is_elementwise, is_product, is_view
from volta_fn.compiler.ir.kernel import DefUse, with_each_replaced
from volta_fn.core.arrays.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, has_effects, program_cache
from volta_fn.core.primitive import AxisData
from volta_fn.core.staging import current_position, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.data_movement.movement import reshape_p, transpose, transpose_p
from volta_fn.primitives.data_movement.slicing import concatenate_p, slice_p
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.reduction import reduce_sum_p
from volta_fn.primitives.scan import scan_p
from volta_fn.transforms.vmap import batch_jaxpr

# A scan under change: the variables of its body, with those outside.

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
    """A mutable view of a scan, from which passes move equations."""

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
    def other_outputs(self) -> list[Atom]:
        """The outputs of an iteration other than the carry."""
        return [out for out, _ in self.ys]

    @property
    def outputs(self) -> list[Atom]:
        """The outputs of the body."""
        return [*[c.next for c in self.carry], *self.other_outputs]

    def is_constant(self, atom: Atom) -> bool:
        """Return True if an operand in the body is known to be loop-invariant."""
        return isinstance(atom, Literal) or atom in self.consts or atom in self.body.jaxpr.constvars

    def stacked(self, var: Var) -> Var:
        """Return a new variable for the values of a variable in all iterations."""
        return Var(var.aval.update(shape=(self.length, *var.aval.shape)))

    def stack(self, var: Var) -> Atom:
        """Return the stacked values of a variable; stack them if necessary."""
        if var in self.rows:
            return self.rows[var]
        for out, stacked in self.ys:
            if out is var:
                return stacked
        self.ys.append((var, self.stacked(var)))
        return self.ys[-1][1]

    def bytes_to_stack(self, variables: Iterable[Var]) -> int:
        """Return the bytes of new memory that stacking variables takes."""
        stacked: set[Atom] = {*self.rows, *self.other_outputs}
        return self.length * sum(map(size_of, {*variables} - stacked))

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
        """Return the variables that outputs and effects need, without some equations."""
        live, excluded = {*outputs}, {*without}
        for eqn in reversed(self.eqns):
            if eqn not in excluded and (has_effects(eqn) or any(v in live for v in eqn.outvars)):
                live.update(eqn.invars)
        return live

    def drop_dead(self) -> None:
        """Drop equations that nothing depends on; their operands may have been moved."""
        live = self.live(self.outputs)
        self.eqns = [e for e in self.eqns if has_effects(e) or any(v in live for v in e.outvars)]

    def joined(self) -> Equation:
        """Return the equation of the scan in its current state."""
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


# Matrix products that do not depend on the carry are hoisted out of scans.
#
# One product computes those of all iterations.


def move_products_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Hoist matrix products that do not depend on the carry out of scans."""
    return with_each_replaced(closed, lambda eqn: _divided(eqn) if eqn.primitive is scan_p and eqn.params["length"] > 1 else [eqn])


def _divided(eqn: Equation) -> list[Equation]:
    """Return the calls before a scan, the scan, and the calls after it."""
    scan = view_of(eqn)
    before = products_before(scan)
    sums = sums_after(scan)
    after = [*products_after(scan), *sums]  # sums may be of results of products after the loop
    return [*before, scan.joined(), *after] if before or after else [eqn]


def products_before(scan: ScanView) -> list[Equation]:
    """Move products that do not depend on the carry before the loop.

    A call before the loop computes them and their operands for all iterations.
    """
    # Cheap equations and products of constants and rows.
    constant: dict[Atom, bool] = dict.fromkeys([*scan.consts, *scan.body.jaxpr.constvars], True)
    constant.update(dict.fromkeys(scan.rows, False))
    determined: list[Equation] = []
    products: list[Equation] = []
    for eqn in scan.eqns:
        kinds = [isinstance(v, Literal) or constant.get(v) for v in eqn.invars]
        if None in kinds:
            continue
        product = is_thin_product(eqn, [kind is True for kind in kinds])
        if product or is_elementwise(eqn) or is_view(eqn):
            constant[eqn.outvars[0]] = all(kinds)
            determined.append(eqn)
            products += [eqn] if product else []
    live = scan.live(scan.outputs, without=products)
    results = [e.outvars[0] for e in products if e.outvars[0] in live]
    hoisted = _needed(determined, results)
    if not results or not scan.affords(scan.length * sum(size_of(e.outvars[0]) for e in hoisted if not is_view(e))):
        return []
    inputs = [v for v in dict.fromkeys(v for e in hoisted for v in e.invars) if v in scan.consts or v in scan.rows]
    stacks = [scan.stacked(v) for v in results]
    call = scan.call(hoisted, inputs, results, stacks, "products before a loop")
    scan.eqns = [e for e in scan.eqns if e not in products]
    scan.rows.update(zip(results, stacks, strict=True))
    scan.drop_dead()
    return [call]


def _needed(eqns: list[Equation], results: list[Var]) -> list[Equation]:
    needed: set[Atom] = {*results}
    result = []
    for eqn in reversed(eqns):
        if eqn.outvars[0] in needed:
            result.append(eqn)
            needed.update(eqn.invars)
    return result[::-1]


def products_after(scan: ScanView) -> list[Equation]:
    """Move products that no carry depends on after the loop.

    A call after the loop computes them for all iterations, with what depends on them.
    """
    sunk = _movable(scan)
    definitions = {v for e in sunk for v in e.outvars}
    stacked_outputs = [(out, stacked) for out, stacked in scan.ys if out in definitions]
    read = [v for v in dict.fromkeys(v for e in sunk for v in e.invars) if isinstance(v, Var)]
    inputs = [v for v in read if v not in definitions and v not in scan.body.jaxpr.constvars]
    changing = [v for v in inputs if v not in scan.consts]
    products = sum(size_of(e.outvars[0]) for e in sunk if is_product(e))
    stacked = scan.bytes_to_stack(changing) + scan.length * (products - sum(size_of(out) for out, _ in stacked_outputs))
    if not stacked_outputs or not scan.affords(stacked):
        return []
    scan.ys = [(out, stacked) for out, stacked in scan.ys if out not in definitions]
    outputs, results = zip(*stacked_outputs, strict=True)
    scan.eqns = [e for e in scan.eqns if e not in sunk]
    return [scan.call(sunk, inputs, outputs, list(results), "products after a loop")]


def _movable(scan: ScanView) -> list[Equation]:
    """Return products that only stacked outputs depend on, and all their dependents.

    None if one of those has to stay.
    """
    carried = scan.live([c.next for c in scan.carry])
    movable: list[Equation] = []
    results: set[Var] = set()
    for eqn in scan.eqns:
        if any(v in carried for v in eqn.outvars):
            continue
        depends = any(v in results for v in eqn.invars)
        if depends or is_thin_product(eqn, [scan.is_constant(v) for v in eqn.invars]):
            if not (is_product(eqn) or can_be_kernel(eqn)):
                return []
            movable.append(eqn)
            results.update(eqn.outvars)
    return movable


# Sums of products over the iterations of a scan, as products that sum over these.
#
# The gradient of a matrix by which every iteration multiplies is such a sum: each iteration adds a product of few terms to a large
# matrix.


class _Term(NamedTuple):
    """A product, or a sum of elements, and the transposes of it that are added."""

    eqn: Equation
    permutations: tuple[tuple[int, ...], ...]

    def over_steps(self, operands: list[Array]) -> Array:
        """Return the sum over all iterations, of stacked operands."""
        token = current_position.set(self.eqn.position)
        try:
            total = bind(self.eqn.primitive, *operands, **_with_steps(self.eqn))
            for permutation in self.permutations:
                total = transpose(total, permutation)
            return total
        finally:
            current_position.reset(token)


class _Sum(NamedTuple):
    """A value of the carry that each iteration adds terms to."""

    carry: Carry
    terms: list[_Term]

    @property
    def operands(self) -> list[Var]:
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
    movable = [s for s in sums if s in products or not scan.bytes_to_stack(s.operands)]
    scan.carry = [c for c in scan.carry if not any(c is s.carry for s in movable)]
    scan.drop_dead()
    return [_after(scan, s) for s in movable]


def _after(scan: ScanView, accumulation: _Sum) -> Equation:
    """Return a call that computes a sum."""

    def total(start: Array, *operands: Array) -> list[Array]:
        remaining = list(operands)
        for term in accumulation.terms:
            count = len(term.eqn.invars)
            start = add(start, term.over_steps(remaining[:count]))
            del remaining[:count]
        return [start]

    operands = [accumulation.carry.start, *map(scan.stack, accumulation.operands)]
    program = trace_to_jaxpr(total, [v.aval for v in operands], "sums over a loop")
    return Equation(jit_p, operands, [accumulation.carry.end], call_params(program, "sums over a loop"), scan.eqn.position)


def _with_steps(eqn: Equation) -> dict[str, object]:
    """Return the parameters of a product or sum that also sums over iterations.

    Operands are stacked along their first axis.
    """
    if not is_product(eqn):
        return {**eqn.params, "axes": (0, *[axis + 1 for axis in eqn.params["axes"]])}
    contracted, batch = [[tuple([axis + 1 for axis in axes]) for axes in sides] for sides in eqn.params["dimension_numbers"]]
    return {**eqn.params, "dimension_numbers": (tuple([(0, *axes) for axes in contracted]), tuple(batch))}


def _sums(scan: ScanView) -> list[_Sum]:
    """Return the values of the carry that are sums of terms used nowhere else."""
    reader = _Reader(scan)
    sums = [_Sum(carry, terms) for carry in scan.carry if (terms := reader.terms_of(carry))]
    other_carries = [c.next for c in scan.carry if not any(c is s.carry for s in sums)]
    live = scan.live([*other_carries, *scan.other_outputs])
    return [s for s in sums if not any(t.eqn.outvars[0] in live for t in s.terms)]


class _Reader:
    """Finds the terms of which the values of a body are sums."""

    def __init__(self, scan: ScanView) -> None:
        self.scan = scan
        self.index = DefUse(scan.eqns)
        self.uses = Counter([*[v for e in scan.eqns for v in e.invars], *scan.outputs])

    def terms_of(self, carry: Carry) -> list[_Term]:
        """Return the terms that an iteration adds to a carry; none if it does more."""
        addends = self._addends(carry.next, carry.var)
        terms = [self._term(v) for v in addends if v is not carry.var]
        readable = [t for t in terms if t is not None]
        return readable if carry.var in addends and self.uses[carry.var] == 1 and len(readable) == len(terms) else []

    def _addends(self, atom: Atom, total: Var) -> list[Atom]:
        """Return the addends of an atom; partial sums with other uses are not split."""
        eqn = self.index.producer(atom)
        if eqn is None or eqn.primitive is not add.primitive or self.uses[atom] > 1:
            return [atom]
        if any((v.aval.shape, v.aval.dtype) != (total.aval.shape, total.aval.dtype) for v in eqn.invars):
            return [atom]
        return [v for operand in eqn.invars for v in self._addends(operand, total)]

    def _term(self, atom: Atom) -> _Term | None:
        """Return a value as a term, if it is one."""
        permutations: list[tuple[int, ...]] = []
        eqn = self.index.producer(atom)
        while eqn is not None and eqn.primitive is transpose_p:
            permutations.insert(0, eqn.params["permutation"])
            eqn = self.index.producer(eqn.invars[0])
        if eqn is None or any(self.scan.is_constant(v) for v in eqn.invars):
            return None
        summed = has_few_terms(eqn) if is_product(eqn) else eqn.primitive is reduce_sum_p
        return _Term(eqn, tuple(permutations)) if summed else None


# A scan's stacked previous carries, derived by shifting its stacked carries.
#
# Iteration t gets the carry that iteration t - 1 left: the one stack is the other one shifted by an iteration, after the initial carry.
# Where a kernel can store its results several times, nothing is left in such an iteration to be copied.


def drop_delay_stacks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Compute stacks of the carry before each iteration from those after it.

    That happens after the loop, and only for values of the carry that iterations compute anew.
    """
    return with_each_replaced(closed, lambda eqn: _without_delay_stacks(eqn) if eqn.primitive is scan_p and eqn.params["length"] else [eqn])


def _without_delay_stacks(eqn: Equation) -> list[Equation]:
    """Return a scan, and equations for its dropped results."""
    body, consts, count = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    jaxpr = body.jaxpr
    carried, computed = jaxpr.invars[consts : consts + count], {v for e in jaxpr.eqns for v in e.outvars}
    delayed: dict[int, int] = {}  # output number -> number of the carry's value that it is
    for number, out in enumerate(jaxpr.outvars[count:], count):
        if out in carried and jaxpr.outvars[carried.index(out)] in computed:
            delayed[number] = carried.index(out)
    if not delayed:
        return [eqn]
    outvars, results = list(jaxpr.outvars[:count]), list(eqn.outvars[:count])
    stacks: dict[Atom, Var] = {}  # stacks of values that an iteration leaves
    for number, out in enumerate(jaxpr.outvars[count:], count):
        if number not in delayed:
            outvars.append(out)
            results.append(eqn.outvars[number])
            stacks.setdefault(out, eqn.outvars[number])
    after: list[Equation] = []
    for number, carry in delayed.items():
        next_value, output = jaxpr.outvars[carry], eqn.outvars[number]
        if next_value not in stacks:
            outvars.append(next_value)
            stacks[next_value] = Var(output.aval)
            results.append(stacks[next_value])
        after += _shifted(eqn, eqn.invars[consts + carry], stacks[next_value], output)
    program = _with_outputs(body, tuple(outvars))
    return [eqn.replace(outvars=results, params={**eqn.params, "jaxpr": program}), *after]


@program_cache
def _with_outputs(body: ClosedJaxpr, outvars: tuple[Atom, ...]) -> ClosedJaxpr:
    return body.replace(outvars=outvars)


def _shifted(eqn: Equation, first: Atom, stack: Var, output: Var) -> list[Equation]:
    """Return equations that shift a stack by one iteration.

    `first` is the initial carry, `stack` the carry after each iteration, and `output` the carry before each.
    """
    length, *rest = stack.aval.shape
    start, stop = (1, length) if eqn.params["reverse"] else (0, length - 1)
    row = Var(stack.aval.update(shape=(1, *rest)))
    rows = Var(stack.aval.update(shape=(length - 1, *rest)))
    cut = {"start_indices": (start, *[0] * len(rest)), "limit_indices": (stop, *rest), "strides": None}
    joined: list[Atom] = [rows, row] if eqn.params["reverse"] else [row, rows]
    return [
        Equation(reshape_p, [first], [row], {"new_sizes": row.aval.shape}, eqn.position),
        Equation(slice_p, [stack], [rows], cut, eqn.position),
        Equation(concatenate_p, joined, [output], {"dimension": 0}, eqn.position),
    ]
