"""Loop variance: carries that no iteration changes become constants of the loop.

A value of the carry that every iteration passes on as it got it is a const. A const operand that is a literal is written into the body. An
output of a scan's iterations needs no work where it is a const (then it is a broadcast), the row itself, or equal to another output.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.passes.dce import kept
from volta_fn.compiler.passes.rewriting import literal_key
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, program_cache
from volta_fn.primitives.control_flow.loops import while_p
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p


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
            new = _scan(eqn, renamed)
        elif eqn.primitive is while_p:
            new = _while(eqn, renamed)
        changed = changed or new[0] is not eqn
        eqns += new
    if not changed:
        return closed
    return closed.replace(outvars=[renamed.get(v, v) for v in closed.jaxpr.outvars], eqns=eqns)


def _invariant(closed: ClosedJaxpr, consts: int, start: Sequence[Atom]) -> list[bool]:
    """Mark the values of the carry that stay as they are at the start."""
    invars, outvars = closed.jaxpr.invars[consts:], closed.jaxpr.outvars
    return [
        new is old or (type(new) is Literal and type(first) is Literal and literal_key(new) == literal_key(first))
        for new, old, first in zip(outvars, invars, start, strict=False)
    ]


def _specialised(closed: ClosedJaxpr, groups: Sequence[tuple[Sequence[Var], Sequence[Atom]]], outvars: list[Atom]) -> ClosedJaxpr:
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


def _while(eqn: Equation, renamed: dict[Atom, Atom]) -> list[Equation]:
    params = eqn.params
    cond, body, first, second = params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"]
    start = eqn.invars[first + second :]
    same = _invariant(body, second, start)
    changing = [not s for s in same]
    cond_consts = [*eqn.invars[:first], *kept(start, same)]
    body_consts = [*eqn.invars[first : first + second], *kept(start, same)]
    asked, given = _distinct(cond_consts), _distinct(body_consts)
    if not any(same) and len(asked) == first and len(given) == second:
        return [eqn]
    cond_program = _regrouped(cond, first, tuple(same), _Operands(cond_consts), (True,))
    body_program = _regrouped(body, second, tuple(same), _Operands(body_consts), tuple(changing))
    renamed.update((v, x) for v, x, s in zip(eqn.outvars, start, same, strict=True) if s)
    new = {"cond_jaxpr": cond_program, "body_jaxpr": body_program, "cond_nconsts": len(asked), "body_nconsts": len(given)}
    return [eqn.replace([*asked, *given, *kept(start, changing)], kept(eqn.outvars, changing), new)]


@program_cache
def _regrouped(closed: ClosedJaxpr, consts: int, same: tuple[bool, ...], operands: _Operands, outputs: tuple[bool, ...]) -> ClosedJaxpr:
    """Return a loop's program with values of its carry as consts, and some outputs."""
    invars, outvars = closed.jaxpr.invars, kept(closed.jaxpr.outvars, outputs)
    carry, rest = invars[consts : consts + len(same)], invars[consts + len(same) :]
    changing = [*kept(carry, [not s for s in same]), *rest]
    return _specialised(closed, [([*invars[:consts], *kept(carry, same)], operands.atoms), (changing, changing)], outvars)


def _scan(eqn: Equation, renamed: dict[Atom, Atom]) -> list[Equation]:
    params = eqn.params
    body, consts, count = params["jaxpr"], params["num_consts"], params["num_carry"]
    start = eqn.invars[consts : consts + count]
    same = _invariant(body, consts, start)
    changing = [not s for s in same]
    operands = [*eqn.invars[:consts], *kept(start, same)]
    distinct = _distinct(operands)
    plain = _plain_outputs(eqn, same)
    working = [p is None for p in plain]
    if not any(same) and len(distinct) == consts and all(working):
        return [eqn]
    program = _regrouped(body, consts, tuple(same), _Operands(operands), (*changing, *working))
    renamed.update((v, x) for v, x, s in zip(eqn.outvars, start, same, strict=False) if s)
    new = {**params, "jaxpr": program, "num_consts": len(distinct), "num_carry": sum(changing)}
    invars = [*distinct, *kept(start, changing), *eqn.invars[consts + count :]]
    loop = eqn.replace(invars, [*kept(eqn.outvars[:count], changing), *kept(eqn.outvars[count:], working)], new)
    return [loop, *_without_work(eqn, plain, renamed)]


def _plain_outputs(eqn: Equation, same: Sequence[bool]) -> list[tuple[str, Atom] | None]:
    """Return the stacked outputs of a scan that are known without running it.

    That is a repeated operand or literal, a scanned operand, or another output.
    """
    body, consts, count = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    invars, outvars = body.jaxpr.invars, body.jaxpr.outvars
    known: dict[Atom, tuple[str, Atom]] = {}
    for i, (var, operand) in enumerate(zip(invars, eqn.invars, strict=True)):
        if i < consts or (i < consts + count and same[i - consts]):
            known[var] = ("repeated", operand)
        elif i >= consts + count:
            known[var] = ("same", operand)
    plain: list[tuple[str, Atom] | None] = []
    for out, result in zip(outvars[count:], eqn.outvars[count:], strict=True):
        plain.append(("repeated", out) if type(out) is Literal else known.get(out))
        known.setdefault(out, ("same", result))
    return plain


def _without_work(eqn: Equation, plain: Sequence[tuple[str, Atom] | None], renamed: dict[Atom, Atom]) -> list[Equation]:
    new: list[Equation] = []
    for var, found in zip(eqn.outvars[eqn.params["num_carry"] :], plain, strict=True):
        if found is None:
            continue
        kind, atom = found
        if kind == "same":
            renamed[var] = renamed.get(atom, atom)
            continue
        shape = var.aval.shape
        params = {"shape": shape, "broadcast_dimensions": tuple(range(1, len(shape)))}
        new.append(Equation(broadcast_in_dim_p, [atom], [var], params, eqn.position))
    return new
