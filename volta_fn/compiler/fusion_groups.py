"""Groups of equations that become one kernel, and values that are recomputed."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

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
    is_elementwise,
    is_product,
    is_view,
    reduces,
    reduces_rows,
    row_major,
    split,
    view_index,
)
from volta_fn.compiler.lowering import IndexedEquation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.core.primitive import Primitive
from volta_fn.dtypes import INEXACT
from volta_fn.primitives.data_movement.movement import iota_p
from volta_fn.primitives.elementwise import arithmetic, selection

# A group is a loop over *axes*. Every variable that it computes has an *index*: where in the loop it is computed. A variable that it only
# reads may have one too, which then proposes where to compute its consumers. Indices of views follow from those of what they show
# (`Group.find_index`); an axis is split where a reshape cuts through it.
#
# Before the first reduction the reduction axes are undecided (`reduction_axes` is None), and every variable is computed once per iteration
# of the loop. The first reduction decides: from then on variables are per element of a row, or per row.
#
# A loop can compute an equation if it has one index for it (`Group.index_of`). For `e` at (i, j) it has none for `e + e.T`, whose operands
# are at (i, j) and (j, i), for `e[1:]`, which some iterations lack, and for `e.sum(0)` once there is `e.sum(1)`.

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


# Embeddings: two groups in one loop.
#
# An equation that reads both has an index in each, which pairs their axes.


class Embedding(NamedTuple):
    """A mapping of one group, the guest, into the loop of another, the host."""

    #: The host's names of the guest's axes.
    axes: dict[int, int]
    #: The host's reduction axes when both are one, if they are decided.
    reduction_axes: frozenset[int] | None

    def inverse(self) -> Embedding:
        """Return the mapping of the host into the guest, if both have equally many axes."""
        back = {new: old for old, new in self.axes.items()}
        return Embedding(back, None if self.reduction_axes is None else frozenset(back[a] for a in self.reduction_axes))


def embedding_of(guest: Group, host: Group, eqn: Equation, index: Index, views: Views) -> Embedding | None:
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
    return _embedding(guest, host, axes)


def embedding_of_columns(guest: Group, host: Group) -> Embedding | None:
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
    embedding = _embedding(guest, host, axes)
    return embedding if embedding is not None and embedding.reduction_axes == host.reduction_axes else None


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


def _embedding(guest: Group, host: Group, axes: dict[int, int]) -> Embedding | None:
    """Return the embedding, if all is still computed per element of a row, or per row."""
    everything = frozenset(range(len(host.sizes)))
    mapped = frozenset(axes.values())
    if guest.reduction_axes is not None:
        row = frozenset(axes[a] for a in guest.reduction_axes)
        return Embedding(axes, row) if mapped == everything and host.reduction_axes in (None, row) else None
    if mapped in (everything, everything - host.row):
        return Embedding(axes, host.reduction_axes)
    leading = bool(mapped) and mapped == frozenset(range(len(mapped)))
    # Values along the leading axes alone decide that these number the rows.
    return Embedding(axes, everything - mapped) if host.reduction_axes is None and leading else None


# Minimum cuts of acyclic graphs, by maximum flow, which decide what is recomputed.
#
# A minimum cut is the cheapest set of nodes to keep so that everything above them can be computed from them. By the theorem of Ford and
# Fulkerson (1956) the cost of a minimum cut is that of the maximum flow, which shortest augmenting paths find (Edmonds & Karp 1972). Each
# node is two here, its upper and its lower side, and its cost is what can flow from the one to the other.

T = TypeVar("T")

#: More than any sum of costs.
NEVER = 1 << 62


def minimum_cut(cost: Mapping[T, int], below: Mapping[T, Sequence[T]], tops: Iterable[T]) -> set[T]:
    """Return the cheapest nodes that cut all paths from `tops` down.

    Paths end at nodes with nothing below. Of equally cheap sets it is the topmost.
    """
    flow = _Flow(cost, below, list(dict.fromkeys(tops)))
    while flow.augment():
        pass
    return {node for node, lower in flow.predecessors if not lower and (node, True) not in flow.predecessors}


class _Flow(Generic[T]):
    """A flow from the tops of a graph to its bottom, which grows along shortest paths."""

    def __init__(self, cost: Mapping[T, int], below: Mapping[T, Sequence[T]], tops: list[T]) -> None:
        self.cost = cost
        self.below = below
        self.tops = tops
        self.node_flow: dict[T, int] = defaultdict(int)
        #: Flow along edges, by their lower ends.
        self.edge_flow: dict[T, dict[T, int]] = defaultdict(lambda: defaultdict(int))
        #: The sides of nodes that the last search reached, and from where.
        self.predecessors: dict[tuple[T, bool], tuple[T, bool] | None] = {}

    def augment(self) -> bool:
        """Increase the flow; return False if it is maximal."""
        self.predecessors = dict.fromkeys([(t, False) for t in self.tops])
        queue = deque(self.predecessors)
        while queue:
            side = queue.popleft()
            if side[1] and not self.below.get(side[0]):
                self._push(side)
                return True
            for next_side in self._residual_neighbours(*side):
                if next_side not in self.predecessors:
                    self.predecessors[next_side] = side
                    queue.append(next_side)
        return False

    def _residual_neighbours(self, node: T, lower: bool) -> Iterator[tuple[T, bool]]:
        """Yield the sides of nodes that more flow can go to, or less can come from."""
        if lower:
            yield from [(other, False) for other in self.below.get(node, ())]
            if self.node_flow[node] > 0:
                yield node, False
            return
        if self.node_flow[node] < self.cost[node]:
            yield node, True
        yield from [(other, True) for other, amount in self.edge_flow[node].items() if amount > 0]

    def _push(self, end: tuple[T, bool]) -> None:
        """Increase the flow along the path that the last search took to `end`."""
        path = [end]
        while (previous := self.predecessors[path[-1]]) is not None:
            path.append(previous)
        path.reverse()
        steps = list(pairwise(path))
        amount = min(self._residual(a, b) for a, b in steps)
        for (a, a_lower), (b, b_lower) in steps:
            if a is b:
                self.node_flow[a] += amount if b_lower else -amount
            elif a_lower:
                self.edge_flow[b][a] += amount
            else:
                self.edge_flow[a][b] -= amount

    def _residual(self, first: tuple[T, bool], second: tuple[T, bool]) -> int:
        """Return by how much the flow from one side to another can increase."""
        (a, a_lower), (b, b_lower) = first, second
        if a is b:
            return self.cost[a] - self.node_flow[a] if b_lower else self.node_flow[a]
        return NEVER if a_lower else self.edge_flow[a][b]


# Recomputation: some values are cheaper to compute again than to store and load.
#
# A group may store values for later groups alone, as a forward pass does for a gradient. Where a few cheap scalar operations lead to
# such values from others that are in memory anyway, or from fewer and smaller ones, their consumers compute them again from those. What
# to keep in memory is a minimum cut between the values that are read and everything that is in memory or must not be computed twice:
# whatever is not in `_WORK`, such as transcendental functions, divisions, reductions and random bits.
#
# Where compilers of kernels may round a product and a sum once, two kernels, or two passes over a row, may round one value differently.
# A comparison of a value with what was chosen from it, such as the largest of a row, then fails. The values that both operands of a
# comparison are chosen from (`Comparison`) are computed once.

#: Cheap operations, and how much work they are.
_WORK = dict.fromkeys(
    "neg abs sign add sub mul max min clamp eq ne lt le gt ge is_finite and or xor not select_n convert_element_type "
    "real imag complex conj".split(),
    1,
) | {"integer_pow": 2}
#: The largest exponent of a power that is cheap.
_POWER = 4
#: A value that takes more work is stored.
_MOST_WORK = 12
#: The cost of storing what cannot be stored: 255 of these add up to less than `NEVER`, the cost of edges that no cut may cross.
_UNSTORABLE = NEVER >> 8

_COMPARISONS = frozenset([f.primitive for f in (selection.eq, selection.ne, selection.lt, selection.le, selection.gt, selection.ge)])
_SUMS = (arithmetic.add.primitive, arithmetic.sub.primitive)
_SIGNS = (arithmetic.neg.primitive, arithmetic.abs.primitive)
#: Operations whose results are elements of their operands, or these with another sign or in another dtype.
_CHOICES = frozenset(
    "neg abs max min clamp select_n convert_element_type pad concatenate reduce_max reduce_min cummax cummin sort top_k gather "
    "wrapped_gather dynamic_slice dynamic_update_slice scatter scatter_max scatter_min reduce_window_max reduce_window_min "
    "select_and_gather_add".split()
)


class Comparison(NamedTuple):
    """Values from which both operands of a comparison are chosen."""

    sources: frozenset[Var]
    #: Those of them that just one operand depends on through a reduction or another operation that is not elementwise.
    sources_behind_reduction: frozenset[Var]


def comparisons(program: ClosedJaxpr) -> dict[Var, Comparison]:
    """Return the comparisons of values with choices from them, by result."""
    producers = {out: eqn for eqn in program.eqns for out in eqn.outvars}
    result: dict[Var, Comparison] = {}
    for eqn in program.eqns:
        if eqn.primitive in _COMPARISONS and eqn.invars[0].aval.dtype in INEXACT:
            left, right = [_sources(atom, producers) for atom in eqn.invars]
            sources = frozenset(v for v, _ in left) & frozenset(v for v, _ in right)
            if sources:
                behind_reduction = frozenset(v for v, is_reduced in left if (v, not is_reduced) in right)
                result[eqn.outvars[0]] = Comparison(sources, behind_reduction)
    return result


def _sources(atom: Atom, producers: Mapping[Var, Equation]) -> set[tuple[Var, bool]]:
    """Return the values that a value is chosen from.

    Each has whether that takes more than elementwise operations, and may be rounded differently by another kernel.
    Sums of values in memory are not among them: they are rounded once, wherever they are computed.
    """
    sources: set[tuple[Var, bool]] = set()
    stack: list[tuple[Atom, bool]] = [(atom, False)]
    visited: set[tuple[Var, bool]] = set()
    while stack:
        at, reduced = stack.pop()
        if not isinstance(at, Var) or (at, reduced) in visited or at not in producers or at.aval.dtype not in INEXACT:
            continue
        visited.add((at, reduced))
        eqn = producers[at]
        if is_view(eqn) or eqn.primitive.name in _CHOICES or _rounds_once(eqn, producers):
            further = reduced or not (is_view(eqn) or is_elementwise(eqn))
            stack += [(operand, further) for operand in eqn.invars]
        else:
            sources.add((at, reduced))
    return sources


def _rounds_once(eqn: Equation, producers: Mapping[Var, Equation]) -> bool:
    """Return True for a sum or a product that no compiler contracts with another."""
    # Floating-point contraction makes one operation of a product and a sum; here no operand is computed by the other of the two.
    if eqn.primitive in _SUMS:
        return all(_computes(atom, producers) in (None, *_SUMS) for atom in eqn.invars)
    mul = arithmetic.mul.primitive
    return eqn.primitive is mul and all(_computes(atom, producers) in (None, mul) for atom in eqn.invars)


def _computes(atom: Atom, producers: Mapping[Var, Equation]) -> Primitive | None:
    """Return the elementwise operation of an operand; None if it is loaded."""
    # It is found through views and changes of sign.
    while isinstance(atom, Var) and atom in producers:
        eqn = producers[atom]
        if not (is_view(eqn) and eqn.invars) and eqn.primitive not in _SIGNS:
            return eqn.primitive if is_elementwise(eqn) else None
        atom = eqn.invars[0]
    return None


def recompute(
    groups: Iterable[Group], materialised: Collection[Atom], capabilities: TargetCapabilities, fixed: Collection[Var] = ()
) -> None:
    """Let groups recompute values of earlier ones, except `fixed` ones.

    `materialised` has the variables that nodes other than groups read.
    """
    groups = list(groups)
    consumers: dict[Var, list[Group]] = {}
    for group in groups:
        for var in group.reads:
            consumers.setdefault(var, []).append(group)
    for group in groups:
        shared = [
            v
            for v in group.members
            if v in consumers and v not in materialised and v not in fixed and _is_worth_recomputing(group.members[v], capabilities)
        ]
        if shared:
            _Region(group, shared, consumers, materialised, fixed).apply(capabilities.kernel_buffers)


def _is_worth_recomputing(eqn: Equation, capabilities: TargetCapabilities) -> bool:
    return eqn.outvars[0].aval.nbytes > capabilities.recompute_above and _work(eqn) is not None


def _work(eqn: Equation) -> int | None:
    """Return the work of an equation; None if it is not cheap."""
    if is_view(eqn) or eqn.primitive is iota_p:
        return 0
    if eqn.primitive is arithmetic.integer_pow_p and not 0 <= eqn.params["y"] <= _POWER:
        return None
    return _WORK.get(eqn.primitive.name)


class _Region:
    """The equations from which a group computes the values that others read.

    They end at values that are in memory, expensive, or fixed.
    """

    def __init__(
        self, group: Group, shared: Sequence[Var], consumers: dict[Var, list[Group]], materialised: Collection[Atom], fixed: Collection[Var]
    ) -> None:
        self.group = group
        self.fixed = fixed
        self.shared = shared
        self.consumers = consumers
        self.users = list(dict.fromkeys([g for v in shared for g in consumers[v]]))
        self.cost: dict[Var, int] = {}
        self.below: dict[Var, list[Var]] = {}
        self.work: dict[Var, int] = {}
        self._explore()
        for var in self.cost:
            self.cost[var] = self._cost(var, materialised)

    def equation(self, var: Var) -> Equation | None:
        """Return the equation of a variable in the group, or None if it is loaded."""
        group = self.group
        return group.members.get(var) or group.read_views.get(var) or group.recomputed.get(var)

    def _explore(self) -> None:
        """Find the region, deepest variables first."""
        stack = list(self.shared)
        while stack:
            var = stack[-1]
            eqn = self.equation(var)
            is_cheap = eqn is not None and var not in self.fixed and _work(eqn) is not None
            operands = [v for v in eqn.invars if isinstance(v, Var)] if eqn is not None and is_cheap else []
            new = [v for v in operands if v not in self.cost]
            if new and var not in self.below:
                self.below[var] = operands
                stack += new
                continue
            stack.pop()
            if var not in self.cost:
                self._close(var, eqn, operands)

    def _close(self, var: Var, eqn: Equation | None, operands: list[Var]) -> None:
        work = 0 if eqn is None or var in self.fixed else (_work(eqn) or 0) + sum(self.work[v] for v in operands)
        is_expensive = work > _MOST_WORK
        self.cost[var] = 0
        self.work[var] = 0 if is_expensive else work
        self.below[var] = [] if is_expensive else operands

    def _cost(self, var: Var, materialised: Collection[Atom]) -> int:
        """Return the bytes to store and load if consumers load the variable."""
        if var not in self.group.members:
            if self.equation(var) is not None:
                return _UNSTORABLE  # not in memory, and no step that could be stored
            return 0 if all(var in g.reads for g in self.users) else var.aval.nbytes
        is_stored = var in materialised or (var in self.consumers and var not in self.shared)
        return var.aval.nbytes if is_stored else 2 * var.aval.nbytes

    def apply(self, limit: int) -> None:
        """Find the cut, and let the consumers compute the values above it."""
        cut = minimum_cut(self.cost, self.below, self.shared)
        computations = {v: self._equations_above_cut(v, cut) for v in self.shared if v not in cut}
        changes = []
        for consumer in self.users:
            recomputed = [v for v in consumer.reads if v in computations]
            loads = dict.fromkeys([v for v in consumer.reads if v not in computations])
            for var in recomputed:
                loads |= dict.fromkeys(computations[var][1])
            if len(loads) + len(consumer.required) > limit:
                return
            changes.append((consumer, recomputed, loads))
        for consumer, recomputed, loads in changes:
            for var in recomputed:
                consumer.recomputed |= computations[var][0]
            for var in loads.keys() - consumer.reads.keys():
                self.consumers.setdefault(var, []).append(consumer)
            consumer.reads = loads

    def _equations_above_cut(self, var: Var, cut: Collection[Var]) -> tuple[dict[Var, Equation], list[Var]]:
        """Return the equations from the cut to a variable, and their loads."""
        equations: dict[Var, Equation] = {}
        loads: list[Var] = []
        stack = [var]
        while stack:
            at = stack.pop()
            eqn = self.equation(at)
            if at in cut or eqn is None:
                loads.append(at)
            elif at not in equations:
                equations[at] = eqn
                stack += [v for v in eqn.invars if isinstance(v, Var)]
        return equations, loads
