"""Loops and control flow: invariant code, constant carries, branches, fission.

Conditionals on known indices are replaced by their branch, carries that no iteration changes become constants, and code
that is the same in every iteration is computed before the loop. Loop fission computes products of scanned values for all iterations at
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from volta_fn.compiler.ir.index import can_be_kernel, is_elementwise, is_product, is_view
from volta_fn.compiler.ir.kernel import DefUse, with_each_replaced
from volta_fn.compiler.passes.dce import is_movable, terminates
from volta_fn.compiler.passes.rewriting import literal_key
from volta_fn.core.arrays.array import Array
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, has_effects, program_cache
from volta_fn.core.primitive import AxisData
from volta_fn.core.staging import current_position, trace_to_jaxpr
from volta_fn.core.trace import bind
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, reshape_p, transpose, transpose_p
from volta_fn.primitives.data_movement.slicing import concatenate_p, slice_p
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.reduction import reduce_sum_p
from volta_fn.primitives.scan import scan_p
from volta_fn.transforms.differentiation import marked
from volta_fn.transforms.vmap import batch_jaxpr

# Conditionals known in advance.


def choose_branches(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace conditionals on a known index, or of equal branches, by a call."""
    return with_each_replaced(closed, lambda eqn: [_selected_branch(eqn) if eqn.primitive is cond_p else eqn])


def _selected_branch(eqn: Equation) -> Equation:
    branches: tuple[ClosedJaxpr, ...] = eqn.params["branches"]
    index = eqn.invars[0]
    if all(b is branches[0] for b in branches):
        branch = branches[0]
    elif type(index) is Literal and 0 <= int(index.val.item()) < len(branches):
        branch = branches[int(index.val.item())]
    else:
        return eqn
    return Equation(jit_p, eqn.invars[1:], eqn.outvars, call_params(branch, "branch"), eqn.position)


# Loop-invariant code motion.
#
# Loop-invariant equations are computed once, before the loop. Equations with effects stay, and so do barriers and calls of
# the host's functions. Everything else raises nothing and always gives a value, so that it may even be computed for a loop that then
# makes no iteration. The exception is a while loop, which might not end. Large results of small operands stay, too: they are cheap to
# make and would take memory for as long as the loop runs.

#: Elements from which on a result that is larger than its operands stays in the loop.
_LARGE_RESULT = 1024


class _LoopProgram(NamedTuple):
    """A program of a loop, by the names of its parameter and of its number of consts."""

    name: str
    count_name: str
    #: Whether it runs at least once.
    always_runs: bool


#: The programs of a scan that makes an iteration, and of a while loop.
_SCAN_PROGRAMS = [_LoopProgram("jaxpr", "num_consts", always_runs=True)]
_WHILE_PROGRAMS = [
    _LoopProgram("cond_jaxpr", "cond_nconsts", always_runs=True),
    _LoopProgram("body_jaxpr", "body_nconsts", always_runs=False),
]


def hoist_invariants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move loop-invariant equations before the loops of a program."""

    def hoisted(eqn: Equation) -> list[Equation]:
        if eqn.primitive is scan_p and eqn.params["length"]:
            return _hoist_from(eqn, _SCAN_PROGRAMS)
        if eqn.primitive is while_p:
            return _hoist_from(eqn, _WHILE_PROGRAMS)
        return [eqn]

    return with_each_replaced(closed, hoisted)


def _hoist_from(eqn: Equation, programs: list[_LoopProgram]) -> list[Equation]:
    """Return calls of the invariant equations, and the loop without them."""
    calls: list[Equation] = []
    invars: list[Atom] = []
    params: dict[str, Any] = dict(eqn.params)
    start = 0
    for name, count_name, always_runs in programs:
        operands = eqn.invars[start : start + params[count_name]]
        start += params[count_name]
        invars += operands
        parts = _split_body(params[name], len(operands), always_runs)
        if parts is None:
            continue
        before, params[name] = parts
        call = Equation(jit_p, operands, [Var(a) for a in before.out_avals], call_params(before, "invariant"), eqn.position)
        calls.append(call)
        invars += call.outvars
        params[count_name] += len(call.outvars)
    if not calls:
        return [eqn]
    return [*calls, eqn.replace(invars=[*invars, *eqn.invars[start:]], params=params)]


@program_cache
def _split_body(body: ClosedJaxpr, consts: int, always_runs: bool) -> tuple[ClosedJaxpr, ClosedJaxpr] | None:
    """Split a body into the equations that its consts determine, and the rest.

    The rest takes the results of the former as further consts.
    """
    jaxpr = body.jaxpr
    # Equations that are worth it are moved, with their operands.
    fixed: set[Var] = {*body.jaxpr.constvars, *body.jaxpr.invars[:consts]}
    candidates: list[Equation] = []
    for eqn in body.eqns:
        if all(type(v) is Literal or v in fixed for v in eqn.invars) and is_movable(eqn) and (always_runs or terminates(eqn)):
            candidates.append(eqn)
            fixed.update(eqn.outvars)
    invariant: set[Equation] = set()
    needed: set[Atom] = set()
    for eqn in reversed(candidates):
        if not _inflates(eqn) or any(v in needed for v in eqn.outvars):
            invariant.add(eqn)
            needed.update(eqn.invars)
    if not invariant:
        return None
    rest = [e for e in jaxpr.eqns if e not in invariant]
    read = {v for e in rest for v in e.invars}.union(jaxpr.outvars)
    passed = [v for e in jaxpr.eqns if e in invariant for v in e.outvars if v in read]
    const_inputs = jaxpr.invars[:consts]
    hoisted = body.replace(invars=const_inputs, outvars=passed, eqns=[e for e in jaxpr.eqns if e in invariant])
    return hoisted, body.replace(invars=[*const_inputs, *passed, *jaxpr.invars[consts:]], eqns=rest)


def _inflates(eqn: Equation) -> bool:
    size = sum(v.aval.size for v in eqn.outvars)
    return size > _LARGE_RESULT and size > sum(v.aval.size for v in eqn.invars)


# Constants of bodies, which a routine for a whole loop needs as operands.


def pass_constants(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Make the constants of scans' bodies operands of the scans."""
    variables: dict[int, Var] = {}
    constants: list[Any] = []

    def operand(constant: Any) -> Var:
        if id(constant) not in variables:
            variables[id(constant)] = Var(constant.aval)
            constants.append(constant)
        return variables[id(constant)]

    def passed(eqn: Equation) -> list[Equation]:
        body = eqn.params["jaxpr"] if eqn.primitive is scan_p else None
        if body is None or not body.consts:
            return [eqn]
        jaxpr = Jaxpr([], [*body.jaxpr.constvars, *body.jaxpr.invars], body.jaxpr.outvars, body.jaxpr.eqns)
        params = {**eqn.params, "jaxpr": ClosedJaxpr(jaxpr), "num_consts": eqn.params["num_consts"] + len(body.consts)}
        return [eqn.replace(invars=[*map(operand, body.consts), *eqn.invars], params=params)]

    result = with_each_replaced(closed, passed)
    if not constants:
        return closed
    jaxpr = result.jaxpr
    return ClosedJaxpr(
        Jaxpr([*jaxpr.constvars, *variables.values()], jaxpr.invars, jaxpr.outvars, jaxpr.eqns), [*result.consts, *constants]
    )


# Loop variance: carries that no iteration changes become constants of the loop.
#
# A value of the carry that every iteration passes on as it got it is a const. A const operand that is a literal is written into the
# body. An output of a scan's iterations is trivial where it is a const (then it is a broadcast), the row itself, or equal to another
# output.


def simplify_loops(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Drop unchanged carries of loops, and write literal operands into the bodies."""
    if not any(e.primitive is scan_p or e.primitive is while_p for e in closed.eqns):
        return closed
    renamed: dict[Atom, Atom] = {}
    eqns: list[Equation] = []
    changed = False
    for eqn in closed.eqns:
        if renamed and any(v in renamed for v in eqn.invars):
            eqn = eqn.replace(invars=[renamed.get(v, v) for v in eqn.invars])
        new = [eqn]
        if eqn.primitive is scan_p:
            new = _simplify_scan(eqn, renamed)
        elif eqn.primitive is while_p:
            new = _simplify_while(eqn, renamed)
        changed = changed or new[0] is not eqn
        eqns += new
    if not changed:
        return closed
    return closed.replace(outvars=[renamed.get(v, v) for v in closed.jaxpr.outvars], eqns=eqns)


def _invariant(closed: ClosedJaxpr, consts: int, start: Sequence[Atom]) -> list[bool]:
    """Mark the values of the carry that no iteration changes."""
    invars, outvars = closed.jaxpr.invars[consts:], closed.jaxpr.outvars
    return [
        new is old or (type(new) is Literal and type(first) is Literal and literal_key(new) == literal_key(first))
        for new, old, first in zip(outvars, invars, start, strict=False)
    ]


def _substitute_inputs(closed: ClosedJaxpr, groups: Sequence[tuple[Sequence[Var], Sequence[Atom]]], outvars: list[Atom]) -> ClosedJaxpr:
    """Replace inputs whose operands are literals, or equal to others of their group.

    `groups` are the inputs with their operands; `outvars` are the outputs.
    """
    renamed: dict[Atom, Atom] = {}
    invars: list[Var] = []
    for variables, operands in groups:
        first: dict[Atom, Var] = {}
        for var, operand in zip(variables, operands, strict=True):
            if type(operand) is Literal:
                renamed[var] = operand
            elif first.setdefault(operand, var) is not var:
                renamed[var] = first[operand]
            else:
                invars.append(var)
    eqns = closed.eqns
    if renamed:
        eqns = [e.replace([renamed.get(v, v) for v in e.invars]) if any(v in renamed for v in e.invars) else e for e in eqns]
        outvars = [renamed.get(v, v) for v in outvars]
    return closed.replace(invars=invars, outvars=outvars, eqns=eqns)


def _distinct(operands: Sequence[Atom]) -> list[Atom]:
    """Return the variables of const operands, each once."""
    return list(dict.fromkeys(v for v in operands if type(v) is Var))


class _Operands:
    """Operands of a loop, as a key: which are literals, and which are equal variables."""

    def __init__(self, atoms: Sequence[Atom]) -> None:
        self.atoms = atoms
        numbers: dict[Atom, int] = {}
        self.key = tuple([literal_key(v) if type(v) is Literal else numbers.setdefault(v, len(numbers)) for v in atoms])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Operands) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _simplify_while(eqn: Equation, renamed: dict[Atom, Atom]) -> list[Equation]:
    params = eqn.params
    cond, body, first, second = params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"]
    start = eqn.invars[first + second :]
    invariant = _invariant(body, second, start)
    variant = [not mark for mark in invariant]
    cond_consts = [*eqn.invars[:first], *marked(start, invariant)]
    body_consts = [*eqn.invars[first : first + second], *marked(start, invariant)]
    cond_operands, body_operands = _distinct(cond_consts), _distinct(body_consts)
    if not any(invariant) and len(cond_operands) == first and len(body_operands) == second:
        return [eqn]
    cond_program = _regrouped(cond, first, tuple(invariant), _Operands(cond_consts), (True,))
    body_program = _regrouped(body, second, tuple(invariant), _Operands(body_consts), tuple(variant))
    renamed.update((v, x) for v, x, is_invariant in zip(eqn.outvars, start, invariant, strict=True) if is_invariant)
    new = {"cond_jaxpr": cond_program, "body_jaxpr": body_program, "cond_nconsts": len(cond_operands), "body_nconsts": len(body_operands)}
    return [eqn.replace([*cond_operands, *body_operands, *marked(start, variant)], marked(eqn.outvars, variant), new)]


@program_cache
def _regrouped(
    closed: ClosedJaxpr, consts: int, invariant: tuple[bool, ...], operands: _Operands, outputs: tuple[bool, ...]
) -> ClosedJaxpr:
    """Return a loop's program with values of its carry as consts, and some outputs."""
    invars, outvars = closed.jaxpr.invars, marked(closed.jaxpr.outvars, outputs)
    carry, rest = invars[consts : consts + len(invariant)], invars[consts + len(invariant) :]
    variant = [*marked(carry, [not mark for mark in invariant]), *rest]
    return _substitute_inputs(closed, [([*invars[:consts], *marked(carry, invariant)], operands.atoms), (variant, variant)], outvars)


def _simplify_scan(eqn: Equation, renamed: dict[Atom, Atom]) -> list[Equation]:
    params = eqn.params
    body, consts, count = params["jaxpr"], params["num_consts"], params["num_carry"]
    start = eqn.invars[consts : consts + count]
    invariant = _invariant(body, consts, start)
    variant = [not mark for mark in invariant]
    operands = [*eqn.invars[:consts], *marked(start, invariant)]
    distinct = _distinct(operands)
    trivial = _trivial_outputs(eqn, invariant)
    computed = [p is None for p in trivial]
    if not any(invariant) and len(distinct) == consts and all(computed):
        return [eqn]
    program = _regrouped(body, consts, tuple(invariant), _Operands(operands), (*variant, *computed))
    renamed.update((v, x) for v, x, is_invariant in zip(eqn.outvars, start, invariant, strict=False) if is_invariant)
    new = {**params, "jaxpr": program, "num_consts": len(distinct), "num_carry": sum(variant)}
    invars = [*distinct, *marked(start, variant), *eqn.invars[consts + count :]]
    loop = eqn.replace(invars, [*marked(eqn.outvars[:count], variant), *marked(eqn.outvars[count:], computed)], new)
    return [loop, *_trivial_equations(eqn, trivial, renamed)]


def _trivial_outputs(eqn: Equation, invariant: Sequence[bool]) -> list[tuple[str, Atom] | None]:
    """Return the stacked outputs of a scan that follow without running it, or None.

    That is a repeated operand or literal, a scanned operand, or another output.
    """
    body, consts, count = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    invars, outvars = body.jaxpr.invars, body.jaxpr.outvars
    sources: dict[Atom, tuple[str, Atom]] = {}
    for i, (var, operand) in enumerate(zip(invars, eqn.invars, strict=True)):
        if i < consts or (i < consts + count and invariant[i - consts]):
            sources[var] = ("repeated", operand)
        elif i >= consts + count:
            sources[var] = ("same", operand)
    trivial: list[tuple[str, Atom] | None] = []
    for out, result in zip(outvars[count:], eqn.outvars[count:], strict=True):
        trivial.append(("repeated", out) if type(out) is Literal else sources.get(out))
        sources.setdefault(out, ("same", result))
    return trivial


def _trivial_equations(eqn: Equation, trivial: Sequence[tuple[str, Atom] | None], renamed: dict[Atom, Atom]) -> list[Equation]:
    """Return the equations of trivial outputs; note those that are other variables."""
    new: list[Equation] = []
    for var, source in zip(eqn.outvars[eqn.params["num_carry"] :], trivial, strict=True):
        if source is None:
            continue
        kind, atom = source
        if kind == "same":
            renamed[var] = renamed.get(atom, atom)
            continue
        shape = var.aval.shape
        params = {"shape": shape, "broadcast_dimensions": tuple(range(1, len(shape)))}
        new.append(Equation(broadcast_in_dim_p, [atom], [var], params, eqn.position))
    return new


# Loop fission: matrix products that do not depend on the carry leave scans.
#
# Products of scanned values are computed for all iterations at once. Sums of products over the iterations become products that sum over
# them. A scan that stacks a carry both before and after each iteration stacks it once.

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
        return self.length * sum(map(size_of, self.unstacked(variables)))

    def unstacked(self, variables: Iterable[Var]) -> set[Var]:
        """Return the variables that are not stacked yet."""
        stacked: set[Atom] = {*self.rows, *self.other_outputs}
        return {*variables} - stacked

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
    movable = [s for s in sums if s in products or not scan.unstacked(s.operands)]  # empty arrays take no bytes
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
