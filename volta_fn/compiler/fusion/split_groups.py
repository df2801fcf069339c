"""Cutting a group that needs too many buffers into runs of its steps, each of which needs few enough."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from volta_fn.compiler.fusion.group import Group
from volta_fn.compiler.ir.views import loads
from volta_fn.compiler.lowering.equations import Step
from volta_fn.core.jaxpr import Atom, Equation, Var

Piece = tuple[list[Step], list[Var]]


def pieces(group: Group, views: Mapping[Var, Equation], needed: Collection[Atom], limit: int) -> Iterator[Piece]:
    """The group's steps in order, cut as late as the limit allows, each run with the variables that it must store.

    The group reads through `views`; others need of its variables those that are `needed`.
    """
    steps = [group.steps[n] for n in sorted(group.steps)]
    reads = [list(loads(step.eqn, views)) for step in steps]
    last = {v: n for n, read in enumerate(reads) for v in read}
    start = 0
    while start < len(steps):
        end = _cut(needed, steps, reads, last, start, limit)
        made = [step.eqn.outvars[0] for step in steps[start:end]]
        results = [v for v in made if v in needed or last.get(v, -1) >= end]
        if results:
            yield steps[start:end], results
        start = end


def _cut(needed: Collection[Atom], steps: list[Step], reads: list[list[Var]], last: dict[Var, int], start: int, limit: int) -> int:
    """The end of the longest run from `start` that needs at most `limit` buffers."""
    best = start + 1
    loaded: set[Var] = set()
    made: set[Var] = set()
    kept: set[Var] = set()
    for n in range(start, len(steps)):
        (out,) = steps[n].eqn.outvars
        loaded.update(v for v in reads[n] if v not in made)
        made.add(out)
        kept.difference_update(v for v in reads[n] if last[v] == n and v not in needed)
        if out in needed or last.get(out, -1) > n:
            kept.add(out)
        if len(loaded) > limit:
            break
        if len(loaded) + len(kept) <= limit:
            best = n + 1
    return best
