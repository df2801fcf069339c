"""Dead code, inside control flow too: results that nobody uses, carries that matter only to themselves, operands that nothing reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler.passes.effects import is_dead_weight
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr

Marks = tuple[bool, ...]


def drop_dead(closed: ClosedJaxpr, used: Sequence[bool] | None = None) -> ClosedJaxpr:
    """The program without what its `used` outputs (default: all) and its effects do not need. It keeps its inputs."""
    jaxpr = closed.jaxpr
    outvars = jaxpr.outvars if used is None else kept(jaxpr.outvars, used)
    live: set[Atom] = set(outvars)
    eqns: list[Equation] = []
    changed = len(outvars) != len(jaxpr.outvars)
    for eqn in reversed(jaxpr.eqns):
        needed = [v in live for v in eqn.outvars]
        if not any(needed) and is_dead_weight(eqn):
            changed = True
            continue
        narrow = _NARROW.get(eqn.primitive.name)
        if narrow is not None:
            whole, eqn = eqn, _narrowed(eqn, narrow, tuple(needed))
            changed = changed or eqn is not whole
        eqns.append(eqn)
        live.update(eqn.invars)
    pairs = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in live]
    if not changed and len(pairs) == len(closed.consts):
        return closed
    return ClosedJaxpr(Jaxpr([v for v, _ in pairs], jaxpr.invars, outvars, eqns[::-1]), [c for _, c in pairs])


def kept(values: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    """The values so marked."""
    return [v for v, m in zip(values, marks, strict=True) if m]


class Narrow(NamedTuple):
    """Control flow with fewer operands and results."""

    operands: Marks
    results: Marks
    params: dict[str, Any]


def _narrowed(eqn: Equation, narrow: Callable[[dict[str, Any], Marks], Narrow], used: Marks) -> Equation:
    found = narrow(eqn.params, used)
    if all(found.operands) and all(found.results) and found.params is eqn.params:
        return eqn
    return eqn.replace(kept(eqn.invars, found.operands), kept(eqn.outvars, found.results), found.params)


def _reads(closed: ClosedJaxpr) -> Marks:
    """Which of its inputs a program reads."""
    read = {v for e in closed.eqns for v in e.invars}.union(closed.jaxpr.outvars)
    return tuple([v in read for v in closed.jaxpr.invars])


def _with_inputs(closed: ClosedJaxpr, marks: Sequence[bool]) -> ClosedJaxpr:
    if all(marks):
        return closed
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, kept(jaxpr.invars, marks), jaxpr.outvars, jaxpr.eqns), closed.consts)


def _narrow_cond(params: dict[str, Any], used: Marks) -> Narrow:
    branches: tuple[ClosedJaxpr, ...] = params["branches"]
    key = ("narrow cond", branches, used)
    if key not in branches[0].cache:
        programs = [drop_dead(b, used) for b in branches]
        reads = tuple([any(column) for column in zip(*map(_reads, programs), strict=True)])
        programs = [_with_inputs(p, reads) for p in programs]
        same = all(p is b for p, b in zip(programs, branches, strict=True))
        branches[0].cache[key] = reads, None if same else tuple(programs)
    reads, narrowed = branches[0].cache[key]
    return Narrow((True, *reads), used, params if narrowed is None else {**params, "branches": narrowed})


def _narrow_scan(params: dict[str, Any], used: Marks) -> Narrow:
    body: ClosedJaxpr = params["jaxpr"]
    consts, count = params["num_consts"], params["num_carry"]
    key = ("narrow scan", consts, count, used)
    if key not in body.cache:
        body.cache[key] = _new_narrow_scan(body, consts, count, used)
    operands, results, program = body.cache[key]
    if program is body:
        return Narrow(operands, results, params)
    new = {**params, "jaxpr": program, "num_consts": sum(operands[:consts]), "num_carry": sum(results[:count])}
    return Narrow(operands, results, new)


def _new_narrow_scan(body: ClosedJaxpr, consts: int, count: int, used: Marks) -> tuple[Marks, Marks, ClosedJaxpr]:
    ys = used[count:]

    def step(carry: Marks) -> tuple[ClosedJaxpr, Marks]:
        program = drop_dead(body, (*carry, *ys))
        reads = _reads(program)
        return program, tuple([a or b for a, b in zip(carry, reads[consts : consts + count], strict=True)])

    program, carry = _settled(used[:count], step)
    reads = _reads(program)
    operands = (*reads[:consts], *carry, *reads[consts + count :])
    return operands, (*carry, *ys), _with_inputs(program, operands)


def _narrow_while(params: dict[str, Any], used: Marks) -> Narrow:
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    key = ("narrow while", cond, first, second, used)
    if key not in body.cache:
        body.cache[key] = _new_narrow_while(cond, body, first, second, used)
    operands, carry, cond_program, body_program = body.cache[key]
    if cond_program is cond and body_program is body:
        return Narrow(operands, carry, params)
    counts = {"cond_nconsts": sum(operands[:first]), "body_nconsts": sum(operands[first : first + second])}
    return Narrow(operands, carry, {"cond_jaxpr": cond_program, "body_jaxpr": body_program, **counts})


def _new_narrow_while(
    cond: ClosedJaxpr, body: ClosedJaxpr, first: int, second: int, used: Marks
) -> tuple[Marks, Marks, ClosedJaxpr, ClosedJaxpr]:
    condition = drop_dead(cond)
    asked = _reads(condition)

    def step(carry: Marks) -> tuple[ClosedJaxpr, Marks]:
        program = drop_dead(body, carry)
        return program, tuple([a or b for a, b in zip(carry, _reads(program)[second:], strict=True)])

    program, carry = _settled(tuple([a or b for a, b in zip(used, asked[first:], strict=True)]), step)
    reads = _reads(program)[:second]
    return (
        (*asked[:first], *reads, *carry), carry,
        _with_inputs(condition, (*asked[:first], *carry)), _with_inputs(program, (*reads, *carry)),
    )  # fmt: skip


def _settled(carry: Marks, step: Callable[[Marks], tuple[ClosedJaxpr, Marks]]) -> tuple[ClosedJaxpr, Marks]:
    """Let the live parts of a carry grow by what a step that gives them reads, until it reads no more."""
    while True:
        program, grown = step(carry)
        if grown == carry:
            return program, carry
        carry = grown


_NARROW: dict[str, Callable[[dict[str, Any], Marks], Narrow]] = {"cond": _narrow_cond, "scan": _narrow_scan, "while": _narrow_while}
