"""Groups of equations that become one kernel, and when two fit in one loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from volta_fn.compiler.ir.index import (
    ZERO,
    Affine,
    Index,
    NotAffine,
    PartialIndex,
    SplitAxis,
    along,
    axes_of,
    broadcast_index,
    is_product,
    reduces,
    reduces_rows,
    row_major,
    split,
    view_index,
)
from volta_fn.compiler.lowering import IndexedEquation
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var

# Groups: kernels under construction.
#
# A group is a loop over *axes*. Every variable that it computes has an *index*: where in the loop it is computed. A variable that it only
# reads may have one too, which then proposes where to compute its consumers. Indices of views follow from those of what they show
# (`Group.find_index`); an axis is split where a reshape cuts through it.
#
# Before the first reduction the reduction axes are undecided (`reduction_axes` is None), and every variable is computed once per iteration
# of the loop. The first reduction decides: from then on variables are per element of a row, or per row.

Views = Mapping[Var, Equation]


class Group:
    """A kernel under construction, at a position in the order of a program's kernels."""

    def __init__(self, position: int, sizes: tuple[int, ...]) -> None:
        self.position = position
        self.sizes = sizes
        self.reduction_axes: frozenset[int] | None = None
        #: Equations by their number in the program.
        self.steps: dict[int, IndexedEquation] = {}
        self.indices: dict[Var, PartialIndex] = {}
        #: Variables that the loop computes, and how.
        self.members: dict[Var, Equation] = {}
        #: Variables that it loads.
        self.reads: dict[Var, None] = {}
        #: The views through which it reads, by the variables that they are.
        self.read_views: dict[Var, Equation] = {}
        #: Equations of variables that it computes again rather than load them.
        self.recomputed: dict[Var, Equation] = {}
        #: Values that it must load from other groups rather than compute (`_Fusion.must_load`).
        self.must_load: frozenset[Var] = frozenset()
        #: Whether it is a matrix product with its epilogue.
        self.is_product = False
        #: Whether its values flow into reductions along last dimensions.
        self.feeds_row_reduction = False
        #: Variables that other groups, equations or the program's outputs read.
        self.required: dict[Var, None] = {}
        #: The position of the first group or equation that reads a member.
        self.first_consumer = math.inf

    # axes

    @property
    def row(self) -> frozenset[int]:
        """The reduction axes, as far as they are decided."""
        return self.reduction_axes or frozenset()

    def size_of(self, axes: frozenset[int]) -> int:
        """Return the number of iterations of the loop over some of the axes."""
        return math.prod(self.sizes[a] for a in axes)

    def split(self, request: SplitAxis) -> None:
        """Split an axis in two in all indices."""
        self.sizes, axes = split(self.sizes, request)
        self.rename(axes)

    def rename(self, axes: Mapping[int, Affine]) -> None:
        """Write every index in terms of other axes."""
        self.indices = {v: tuple([None if i is None else i.replaced(axes) for i in index]) for v, index in self.indices.items()}
        self.steps = {n: IndexedEquation(s.eqn, tuple([i.replaced(axes) for i in s.at])) for n, s in self.steps.items()}
        if self.reduction_axes is not None:
            self.reduction_axes = frozenset().union(*[axes.get(a, along(a)).axes for a in self.reduction_axes])

    # indices

    def find_index(self, atom: Atom, views: Views) -> PartialIndex | None:
        """Return the index of a variable, derived from the operand of a view, if any.

        This may split axes.
        """
        if isinstance(atom, Literal):
            return (None,) * len(atom.aval.shape)
        index = self.indices.get(atom)
        if index is not None or atom not in views or not views[atom].invars or not atom.aval.size:
            return index
        eqn = views[atom]
        operand_index = self.find_index(eqn.invars[0], views)
        while operand_index is not None and index is None:
            try:
                index = view_index(eqn, operand_index, self.sizes)
                if index is None:
                    return None
            except SplitAxis as request:
                self.split(request)
                operand_index = self.find_index(eqn.invars[0], views)
            except NotAffine:
                return None
        if index is not None:
            self.indices[atom] = index
        return index

    def index_of(self, eqn: Equation, produced: list[bool], views: Views) -> Index | None:
        """Return the index at which the loop can compute an equation, if there is one.

        `produced` marks the operands that the loop computes itself.
        """
        if 0 in self.sizes:
            return None
        sizes = None
        while sizes is not self.sizes:  # until no index needs an axis split, so that the indices found hold together
            sizes = self.sizes
            indices = [self.find_index(atom, views) for atom in eqn.invars]
        if any(is_produced and index is None for is_produced, index in zip(produced, indices, strict=True)):
            return None
        if reduces(eqn):
            return self._index_of_reduction(eqn, indices[0])
        return self._index_of_elementwise(eqn, indices, produced)

    def _index_of_elementwise(self, eqn: Equation, indices: list[PartialIndex | None], produced: list[bool]) -> Index | None:
        """Return the index that the operands' indices agree on.

        Those of operands that the loop itself computes must agree.
        """
        shape = eqn.outvars[0].aval.shape
        result: list[Affine | None] = [ZERO if n == 1 else None for n in shape]
        ordered = sorted(
            [(not is_produced, p) for p, is_produced in zip(indices, produced, strict=True) if p is not None], key=itemgetter(0)
        )
        for read, index in ordered:
            for d, affine in enumerate(index, len(shape) - len(index)):
                if shape[d] == 1 or affine is None:
                    continue
                if result[d] is None:
                    result[d] = affine
                elif not read and result[d] != affine:
                    return None
        complete = self._completed(result, shape)
        return complete if complete is not None and self._is_index(complete, shape) else None

    def _completed(self, partial: list[Affine | None], shape: Shape) -> Index | None:
        """Fill the unknown dimensions of an index with the row, if they are as long."""
        unknown = [d for d, i in enumerate(partial) if i is None]
        row = sorted(self.row)
        if not unknown:
            return tuple([i for i in partial if i is not None])
        if axes_of(tuple(partial)) & self.row:
            return None
        sizes = tuple([self.sizes[a] for a in row])
        if tuple([shape[d] for d in unknown]) == sizes:
            guess = list(map(along, row))
        elif row and len(unknown) == 1 and shape[unknown[0]] == math.prod(sizes):
            guess = [row_major(tuple(map(along, row)), sizes)]
        else:
            return None
        filled = dict(zip(unknown, guess, strict=True))
        return tuple([filled[d] if i is None else i for d, i in enumerate(partial)])

    def _index_of_reduction(self, eqn: Equation, index: PartialIndex | None) -> Index | None:
        shape = eqn.invars[0].aval.shape
        if index is None or any(i is None and n != 1 for i, n in zip(index, shape, strict=True)):
            return None
        index = tuple([ZERO if i is None else i for i in index])
        reduced = axes_of(tuple([index[a] for a in eqn.params["axes"]]))
        if (
            len(axes_of(index)) != len(self.sizes)
            or not _is_bijective(index, shape, self.sizes)
            or self.reduction_axes not in (None, reduced)
        ):
            return None
        if eqn.primitive.reduction is not None and eqn.primitive.reduction.index_of:
            row = sorted(reduced)
            if index[eqn.params["axes"][0]] != row_major(tuple(map(along, row)), tuple([self.sizes[a] for a in row])):
                return None
        return index

    def _is_index(self, index: Index, shape: Shape) -> bool:
        """Return True if the loop visits each element, once per iteration or once per row."""
        return _is_index(index, shape, self.sizes, self.row)

    def can_store(self, index: PartialIndex, shape: Shape) -> bool:
        """Return True if the loop visits each element of an array at this index just once."""
        is_complete = all(i is not None or n == 1 for i, n in zip(index, shape, strict=True))
        return is_complete and self._is_index(self.store_index(index), shape)

    def store_index(self, index: PartialIndex) -> Index:
        """Complete an index; dimensions along which the array repeats have one element."""
        return tuple([ZERO if i is None else i for i in index])

    def follows(self, index: Index) -> bool:
        """Return True if the loop visits an array in row-major order.

        Only then may equations join it that share no more than a load with it; loops over columns stay separate.
        """
        is_inner = [bool(i.axes & self.row) for i in index if i.terms]
        return len(axes_of(index)) == len(self.sizes) and is_inner == sorted(is_inner)

    def walks_free_axes(self, eqn: Equation) -> bool:
        """Return True if a transposed product keeps rows or columns in the last dimension.

        Otherwise the last dimension is one of the batch.
        """
        product = next(step for step in self.steps.values() if is_product(step.eqn))
        stacked = len(product.eqn.params["dimension_numbers"][1][0])
        free = axes_of(product.at[stacked : len(product.eqn.outvars[0].aval.shape)])
        (operand,) = eqn.invars
        index = self.indices[operand] if isinstance(operand, Var) else ()
        last = [axes_of((index[d],)) for d in eqn.params["permutation"] if index[d] is not None]
        return bool(last) and last[-1] <= free

    # growth

    def add(self, number: int, eqn: Equation, index: Index) -> None:
        """Compute an equation at an index."""
        (out,) = eqn.outvars
        self.steps[number] = IndexedEquation(eqn, index)
        if is_product(eqn):  # reads its operands over and over, so their indices propose nothing
            rank = len(out.aval.shape)
            self.is_product = True
            self.reduction_axes = axes_of(index[rank:])
            index = index[:rank]
        for atom in () if is_product(eqn) else eqn.invars:
            if isinstance(atom, Var) and atom not in self.indices:
                at = index if reduces(eqn) else broadcast_index(index, atom.aval.shape) if len(atom.aval.shape) <= len(index) else None
                if at is not None and self._fits(at, atom.aval.shape):
                    self.indices[atom] = tuple([None if n == 1 else i for i, n in zip(at, atom.aval.shape, strict=True)])
        if reduces(eqn):
            axes = eqn.params["axes"]
            self.reduction_axes = axes_of(tuple([index[a] for a in axes]))
            index = tuple([i for d, i in enumerate(index) if d not in axes])
        self.members[out] = eqn
        self.indices[out] = tuple([None if n == 1 else i for i, n in zip(index, out.aval.shape, strict=True)])

    def _fits(self, index: Index, shape: Shape) -> bool:
        return len(index) == len(shape) and all(self.size_of(i.axes) == n for i, n in zip(index, shape, strict=True))

    def is_per_row(self, atom: Atom) -> bool:
        """Return True if a member, or a view of one, is computed per row."""
        index = self.indices.get(atom) if isinstance(atom, Var) else None
        return index is not None and bool(self.reduction_axes) and not axes_of(index) & self.row

    def absorb(self, other: Group, axes: Mapping[int, int]) -> None:
        """Take over another group, except for its rows; its axes are called `axes` here."""
        other.rename({old: along(new) for old, new in axes.items()})
        self.steps |= other.steps
        self.indices |= {v: index for v, index in other.indices.items() if v in other.members or v not in self.indices}
        self.members |= other.members
        self.read_views |= other.read_views
        self.recomputed |= other.recomputed
        self.must_load |= other.must_load
        self.feeds_row_reduction = self.feeds_row_reduction or other.feeds_row_reduction
        self.required |= other.required
        self.reads = {v: None for v in (*self.reads, *other.reads) if v not in self.members}
        self.first_consumer = min(self.first_consumer, other.first_consumer)


@lru_cache(maxsize=4096)
def _is_index(index: Index, shape: Shape, sizes: tuple[int, ...], row: frozenset[int]) -> bool:
    axes = axes_of(index)
    outer = frozenset(range(len(sizes))) - row
    return axes >= outer and axes - outer in (frozenset(), row) and _is_bijective(index, shape, sizes)


def _is_bijective(index: Index, shape: Shape, sizes: tuple[int, ...]) -> bool:
    count = sum(len(i.terms) for i in index)
    return count == len(axes_of(index)) and all(math.prod([sizes[a] for a, _ in i.terms]) == n for i, n in zip(index, shape, strict=True))


# Unions: two groups in one loop.
#
# An equation that reads both has an index in each, which pairs their axes.


class Union(NamedTuple):
    """A mapping of one group, the guest, into the loop of another, the host."""

    #: The host's names of the guest's axes.
    axes: dict[int, int]
    #: The host's reduction axes when both are one, if they are decided.
    reduction_axes: frozenset[int] | None

    def inverse(self) -> Union:
        """Return the mapping of the host into the guest, if both have equally many axes."""
        back = {new: old for old, new in self.axes.items()}
        return Union(back, None if self.reduction_axes is None else frozenset(back[a] for a in self.reduction_axes))


def union_of(guest: Group, host: Group, eqn: Equation, index: Index, views: Views) -> Union | None:
    """Map the guest into the host by an equation at its `index`; None if that fails."""
    if reduces(eqn) or not _are_independent(guest, host):
        return None
    axes: dict[int, int] = {}
    for atom in eqn.invars:
        guest_index = guest.find_index(atom, views)
        if guest_index is None:
            continue
        for in_guest, in_host, n in zip(guest_index, index[len(index) - len(guest_index) :], atom.aval.shape, strict=True):
            if n != 1 and in_guest is not None and not _match(in_guest, in_host, guest, host, axes):
                return None
    if len(axes) != len(guest.sizes) or len(set(axes.values())) != len(axes):
        return None
    return _union(guest, host, axes)


def union_of_columns(guest: Group, host: Group) -> Union | None:
    """Map one group that reduces over columns into another, or return None.

    They reduce arrays of the same shape and load something in common.
    """
    first, second = _reduction(guest), _reduction(host)
    if first is None or second is None or guest.reads.keys().isdisjoint(host.reads) or not _are_independent(guest, host):
        return None
    shape = first.eqn.invars[0].aval.shape
    axes: dict[int, int] = {}
    if shape != second.eqn.invars[0].aval.shape or len(guest.sizes) != len(host.sizes):
        return None
    if not all(_match(in_guest, in_host, guest, host, axes) for in_guest, in_host in zip(first.at, second.at, strict=True)):
        return None
    union = _union(guest, host, axes)
    return union if union is not None and union.reduction_axes == host.reduction_axes else None


def _reduction(group: Group) -> IndexedEquation | None:
    """Return a reduction of a group whose loop goes over columns."""
    return (
        None
        if group.reduction_axes is None
        else next((s for s in group.steps.values() if reduces(s.eqn) and not reduces_rows(s.eqn)), None)
    )


def _are_independent(guest: Group, host: Group) -> bool:
    """Return True if neither group reads from the other."""
    # One that does was kept out of it for a reason.
    return guest.members.keys().isdisjoint(host.reads) and host.members.keys().isdisjoint(guest.reads)


def _match(in_guest: Affine, in_host: Affine, guest: Group, host: Group, axes: dict[int, int]) -> bool:
    """Pair the axes of two affine numbers that differ only in their axes."""
    guest_terms, host_terms = (sorted(a.terms, key=lambda term: term[1]) for a in (in_guest, in_host))
    if in_guest.offset != in_host.offset or [c for _, c in guest_terms] != [c for _, c in host_terms]:
        return False
    return all(
        guest.sizes[a] == host.sizes[b] and axes.setdefault(a, b) == b for (a, _), (b, _) in zip(guest_terms, host_terms, strict=True)
    )


def _union(guest: Group, host: Group, axes: dict[int, int]) -> Union | None:
    """Return the union, if all is still computed per element of a row, or per row."""
    everything = frozenset(range(len(host.sizes)))
    mapped = frozenset(axes.values())
    if guest.reduction_axes is not None:
        row = frozenset(axes[a] for a in guest.reduction_axes)
        return Union(axes, row) if mapped == everything and host.reduction_axes in (None, row) else None
    if mapped in (everything, everything - host.row):
        return Union(axes, host.reduction_axes)
    leading = bool(mapped) and mapped == frozenset(range(len(mapped)))
    # Values along the leading axes alone decide that these number the rows.
    return Union(axes, everything - mapped) if host.reduction_axes is None and leading else None
