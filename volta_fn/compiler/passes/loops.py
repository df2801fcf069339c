"""Loops and control flow: invariant code, constant carries, branches.

Conditionals on known indices are replaced by their branch, carries that no iteration changes become constants, and code
that is the same in every iteration is computed before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.ir.kernel import with_each_replaced
from volta_fn.compiler.passes.dce import is_movable, terminates
from volta_fn.compiler.passes.rewriting import literal_key
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, program_cache
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.transforms.differentiation import marked

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
