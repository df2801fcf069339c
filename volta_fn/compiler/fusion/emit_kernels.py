"""The end of fusion: groups become kernels, from the last to the first, so that each stores just what those after it load."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from volta_fn.compiler.fusion.group import Group
from volta_fn.compiler.fusion.split_groups import pieces
from volta_fn.compiler.ir.index import NotAffine
from volta_fn.compiler.ir.nodes import KernelCall, Node, reads
from volta_fn.compiler.ir.views import loads
from volta_fn.compiler.lowering.equations import Loop
from volta_fn.compiler.lowering.signature import Kernels
from volta_fn.core.jaxpr import Atom, Equation, Var


def emit(items: Iterable[Group | Equation], outputs: Iterable[Atom], limit: int) -> tuple[Node, ...]:
    """The items of a program with these outputs, whose kernels may have as many buffers as the limit says."""
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
    """A group's kernels: one, unless it needs more buffers than a kernel may have."""
    try:
        return _pieces(group, group.pulled | group.recomputed, needed, limit, kernels)
    except NotAffine:
        pass
    try:
        return _pieces(group, group.pulled, needed, limit, kernels)
    except NotAffine:  # after all
        return list(_one_by_one(group, needed))


def _pieces(group: Group, through: Mapping[Var, Equation], needed: Collection[Atom], limit: int, kernels: Kernels) -> list[Node]:
    views = {v: eqn for v, eqn in through.items() if v not in group.members}
    items: list[Node] = []
    for steps, results in pieces(group, views, needed, limit):
        outputs = tuple([(v, group.store_index(group.places[v])) for v in results])
        kernel, operands = kernels.lowered(Loop(group.sizes, group.row, tuple(steps), outputs), views)
        items.append(KernelCall(kernel, operands, tuple(results)))
    return items


def _one_by_one(group: Group, needed: Collection[Atom]) -> list[Equation]:
    """The steps of a group that are needed as equations, with copies of the views through which they read."""
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
