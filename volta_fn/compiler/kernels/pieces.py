"""Cutting a group that needs too many buffers into runs of its steps, each of which needs few enough."""

from __future__ import annotations

from collections.abc import Iterator

from volta_fn.compiler.kernels.group import Group
from volta_fn.compiler.kernels.lower import Step
from volta_fn.core.jaxpr import Equation, Var

Piece = tuple[list[Step], list[Var]]


def pieces(group: Group, limit: int) -> Iterator[Piece]:
    """The group's steps in order, cut as late as the limit allows, each run with the variables that it must store."""
    steps = [group.steps[n] for n in sorted(group.steps)]
    reads = [_reads(group, step.eqn) for step in steps]
    last = {v: n for n, read in enumerate(reads) for v in read}
    start = 0
    while start < len(steps):
        end = _cut(group, steps, reads, last, start, limit)
        made = [step.eqn.outvars[0] for step in steps[start:end]]
        results = [v for v in made if v in group.required or last.get(v, -1) >= end]
        if results:
            yield steps[start:end], results
        start = end


def _cut(group: Group, steps: list[Step], reads: list[list[Var]], last: dict[Var, int], start: int, limit: int) -> int:
    """The end of the longest run from `start` that needs at most `limit` buffers."""
    best = start + 1
    loaded: set[Var] = set()
    made: set[Var] = set()
    kept: set[Var] = set()
    for n in range(start, len(steps)):
        (out,) = steps[n].eqn.outvars
        loaded.update(v for v in reads[n] if v not in made)
        made.add(out)
        kept.difference_update(v for v in reads[n] if last[v] == n and v not in group.required)
        if out in group.required or last.get(out, -1) > n:
            kept.add(out)
        if len(loaded) > limit:
            break
        if len(loaded) + len(kept) <= limit:
            best = n + 1
    return best


def _reads(group: Group, eqn: Equation) -> list[Var]:
    """The variables, computed by the group or loaded, that an equation reads, seen through views."""
    found = []
    for atom in eqn.invars:
        while isinstance(atom, Var) and atom in group.pulled and atom not in group.members:
            operands = group.pulled[atom].invars
            if not operands:
                break
            atom = operands[0]
        else:
            if isinstance(atom, Var):
                found.append(atom)
    return found
