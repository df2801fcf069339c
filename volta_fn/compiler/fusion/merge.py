"""Decide whether two groups fit in one loop.

An equation that reads both has an index in each, which pairs their axes.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.fusion.group import Group, Views
from volta_fn.compiler.ir.index import Affine, Index
from volta_fn.compiler.ir.views import reduces, reduces_rows
from volta_fn.compiler.lowering.equations import IndexedEquation
from volta_fn.core.jaxpr import Equation


class Union(NamedTuple):
    """How one group, the guest, fits into another, the host."""

    #: The host's names of the guest's axes.
    axes: dict[int, int]
    #: The host's reduction axes when both are one, if they are decided.
    reduced: frozenset[int] | None

    def inverse(self) -> Union:
        """Return how the host fits into the guest, if both have equally many axes."""
        back = {new: old for old, new in self.axes.items()}
        return Union(back, None if self.reduced is None else frozenset(back[a] for a in self.reduced))


def union_of(guest: Group, host: Group, eqn: Equation, index: Index, views: Views) -> Union | None:
    """Return how the guest fits into the host by an equation at `index` of the host.

    None if it does not.
    """
    if reduces(eqn) or not _are_independent(guest, host):
        return None
    axes: dict[int, int] = {}
    for atom in eqn.invars:
        own = guest.find_index(atom, views)
        if own is None:
            continue
        for here, there, n in zip(own, index[len(index) - len(own) :], atom.aval.shape, strict=True):
            if n != 1 and here is not None and not _match(here, there, guest, host, axes):
                return None
    if len(axes) != len(guest.sizes) or len(set(axes.values())) != len(axes):
        return None
    return _union(guest, host, axes)


def union_of_columns(guest: Group, host: Group) -> Union | None:
    """Return how two groups that reduce over columns are one; else None.

    They reduce arrays of the same shape and load something in common.
    """
    first, second = _reduction(guest), _reduction(host)
    if first is None or second is None or guest.reads.keys().isdisjoint(host.reads) or not _are_independent(guest, host):
        return None
    shape = first.eqn.invars[0].aval.shape
    axes: dict[int, int] = {}
    if shape != second.eqn.invars[0].aval.shape or len(guest.sizes) != len(host.sizes):
        return None
    if not all(_match(here, there, guest, host, axes) for here, there in zip(first.at, second.at, strict=True)):
        return None
    union = _union(guest, host, axes)
    return union if union is not None and union.reduced == host.reduced else None


def _reduction(group: Group) -> IndexedEquation | None:
    """Return a reduction of a group whose loop goes over columns."""
    return None if group.reduced is None else next((s for s in group.steps.values() if reduces(s.eqn) and not reduces_rows(s.eqn)), None)


def _are_independent(guest: Group, host: Group) -> bool:
    """Return True if neither group reads from the other.

    One that does was kept out of it for a reason.
    """
    return guest.members.keys().isdisjoint(host.reads) and host.members.keys().isdisjoint(guest.reads)


def _match(here: Affine, there: Affine, guest: Group, host: Group, axes: dict[int, int]) -> bool:
    """Pair the axes of two affine numbers that differ only in their axes."""
    mine, yours = (sorted(a.terms, key=lambda term: term[1]) for a in (here, there))
    if here.offset != there.offset or [c for _, c in mine] != [c for _, c in yours]:
        return False
    return all(guest.sizes[a] == host.sizes[b] and axes.setdefault(a, b) == b for (a, _), (b, _) in zip(mine, yours, strict=True))


def _union(guest: Group, host: Group, axes: dict[int, int]) -> Union | None:
    """Return the union, if all is still computed per element of a row, or per row."""
    everything = frozenset(range(len(host.sizes)))
    mapped = frozenset(axes.values())
    if guest.reduced is not None:
        row = frozenset(axes[a] for a in guest.reduced)
        return Union(axes, row) if mapped == everything and host.reduced in (None, row) else None
    if mapped in (everything, everything - host.row):
        return Union(axes, host.reduced)
    leading = bool(mapped) and mapped == frozenset(range(len(mapped)))
    # What is computed along the leading axes alone decides that these number the rows.
    return Union(axes, everything - mapped) if host.reduced is None and leading else None
