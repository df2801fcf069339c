"""The end of fusion: groups become kernels.

Groups are lowered from the last to the first, so that each stores just what later ones load. A group that needs too many buffers is split
in runs of its steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from volta_fn.compiler.fusion.group import Group
from volta_fn.compiler.ir.index import NotAffine
from volta_fn.compiler.ir.nodes import KernelCall, Node, reads
from volta_fn.compiler.ir.views import loads
from volta_fn.compiler.lowering.equations import IndexedEquation, Kernels, Loop
from volta_fn.core.jaxpr import Atom, Equation, Var


def emit(items: Iterable[Group | Equation], outputs: Iterable[Atom], limit: int) -> tuple[Node, ...]:
    """Return the nodes of a program with these outputs.

    Kernels have at most `limit` buffers.
    """
    needed: set[Atom] = set(outputs)
    result: list[Node] = []
    kernels = Kernels()
    for item in reversed(list(items)):
        new = _lowered(item, needed, limit, kernels) if isinstance(item, Group) else [item]
        for each in new:
            needed.update(reads(each))
        result += reversed(new)
    return tuple(reversed(result))


def _lowered(group: Group, needed: Collection[Atom], limit: int, kernels: Kernels) -> list[Node]:
    """Return a group's kernels: one, unless it needs too many buffers."""
    try:
        return _kernels(group, group.pulled | group.recomputed, needed, limit, kernels)
    except NotAffine:
        pass
    try:
        return _kernels(group, group.pulled, needed, limit, kernels)
    except NotAffine:  # after all
        return list(_one_by_one(group, needed))


def _kernels(group: Group, through: Mapping[Var, Equation], needed: Collection[Atom], limit: int, kernels: Kernels) -> list[Node]:
    views = {v: eqn for v, eqn in through.items() if v not in group.members}
    items: list[Node] = []
    for steps, results in _runs(group, views, needed, limit):
        outputs = tuple([(v, group.store_index(group.indices[v])) for v in results])
        kernel, operands = kernels.lowered(Loop(group.sizes, group.row, tuple(steps), outputs), views)
        items.append(KernelCall(kernel, operands, tuple(results)))
    return items


def _one_by_one(group: Group, needed: Collection[Atom]) -> list[Equation]:
    """Return the steps of a group as equations, with copies of the views they read."""
    result: list[Equation] = []
    copies: dict[Var, Var] = {}
    live = set(needed)
    views = {v: eqn for v, eqn in group.pulled.items() if v not in group.members}

    def read(atom: Atom) -> Atom:
        if not isinstance(atom, Var) or atom not in views:
            return atom
        if atom not in copies:
            eqn = views[atom]
            copies[atom] = Var(atom.aval)
            result.append(eqn.replace(invars=[read(v) for v in eqn.invars], outvars=[copies[atom]]))
        return copies[atom]

    eqns = [group.steps[number].eqn for number in sorted(group.steps)]
    for eqn in reversed(eqns):
        if eqn.outvars[0] in live:
            live.update(loads(eqn, views))
    for eqn in eqns:
        if eqn.outvars[0] in live:
            result.append(eqn.replace(invars=[read(v) for v in eqn.invars]))
    return result


def _runs(
    group: Group, views: Mapping[Var, Equation], needed: Collection[Atom], limit: int
) -> Iterator[tuple[list[IndexedEquation], list[Var]]]:
    """Split a group's steps in runs, each with the variables that it must store.

    A run is as long as the limit of buffers allows. The group reads through `views`; `needed` are its variables that others need.
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


def _cut(
    needed: Collection[Atom], steps: list[IndexedEquation], reads: list[list[Var]], last: dict[Var, int], start: int, limit: int
) -> int:
    """Return the end of the longest run from `start` with at most `limit` buffers."""
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
