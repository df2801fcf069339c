"""When two groups are one loop: an equation reads both, so its index in one says what the axes of the other are there."""

from __future__ import annotations

from volta_fn.compiler.kernels.group import Group, Views
from volta_fn.compiler.kernels.index import Affine, Index
from volta_fn.compiler.kernels.views import reduces
from volta_fn.core.jaxpr import Equation


def axes_between(guest: Group, host: Group, eqn: Equation, index: Index, views: Views) -> dict[int, int] | None:
    """The host's names of the guest's axes, if an equation at `index` of the host lets the guest's loop be the host's; else None."""
    if reduces(eqn):
        return None
    if not (guest.members.isdisjoint(host.reads) and host.members.isdisjoint(guest.reads)):
        return None  # one was kept out of the other for a reason
    axes: dict[int, int] = {}
    for atom in eqn.invars:
        place = guest.find_place(atom, views)
        if place is None:
            continue
        for here, there, n in zip(place, index[len(index) - len(place) :], atom.aval.shape, strict=True):
            if n != 1 and here is not None and not _match(here, there, guest, host, axes):
                return None
    if len(axes) != len(guest.sizes) or len(set(axes.values())) != len(axes):
        return None
    return axes if _rows_agree(guest, host, axes) else None


def _match(here: Affine, there: Affine, guest: Group, host: Group, axes: dict[int, int]) -> bool:
    """Pair the axes of two affine numbers that are the same but for the axes' names."""
    mine, yours = (sorted(a.terms, key=lambda term: term[1]) for a in (here, there))
    if here.offset != there.offset or [c for _, c in mine] != [c for _, c in yours]:
        return False
    return all(guest.sizes[a] == host.sizes[b] and axes.setdefault(a, b) == b for (a, _), (b, _) in zip(mine, yours, strict=True))


def _rows_agree(guest: Group, host: Group, axes: dict[int, int]) -> bool:
    """Whether everything is still computed per element of a row, or per row."""
    everything = frozenset(range(len(host.sizes)))
    mapped = frozenset(axes.values())
    row = None if guest.inner is None else frozenset(axes[a] for a in guest.inner)
    if row is not None:
        return mapped == everything and host.inner in (None, row)
    return mapped in (everything, everything - host.row)
