"""Fusion: which equations of a program become which kernels.

`fuse` groups the equations in one pass. Values that are cheap to compute again are then recomputed rather than stored.
Groups become kernels at the end (`lower_groups`). `docs/architecture.md` follows an example from equations to loops.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from volta_fn.compiler.fusion_groups import Comparison, Embedding, Group, comparisons, embedding_of, embedding_of_columns, recompute
from volta_fn.compiler.ir.index import (
    Index,
    NotAffine,
    PartialIndex,
    axes_of,
    can_be_kernel,
    is_alias,
    is_elementwise,
    is_product,
    is_readable,
    is_view,
    loads,
    loop_over,
    reduces,
    reduces_rows,
)
from volta_fn.compiler.ir.kernel import FusedProgram, KernelCall, ProgramNode, reads
from volta_fn.compiler.lowering import IndexedEquation, Loop, LoweringCache, lower_loop, product_loop
from volta_fn.compiler.target import Target
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, dce_jaxpr
from volta_fn.primitives.data_movement.movement import iota_p, transpose_p
from volta_fn.primitives.data_movement.slicing import concatenate_p, pad_p

# Grouping: `fuse`.
#
# One pass over the equations in their order. Views are not computed at all: a consumer of one reads its operand at another index. An
# equation that computes joins the kernel (`Group`) that produced its operands, or that reads them, if the group's loop can compute it
# where it has the operands at hand; what a group has computed is never computed again. Groups whose results meet in an equation become
# one group.
#
# Groups have an order, and a group reads only what comes before it, so that there is no cycle: an equation joins a group only if its
# other operands come from before that group, and two groups merge only if one can move to the other's position.

#: Views of views of … up to here are followed, then one is materialised.
_DEEPEST_VIEW = 16


def fuse(closed: ClosedJaxpr, target: Target) -> FusedProgram:
    """Group the equations of a program, whose calls are inlined, into kernels."""
    return _Fusion(dce_jaxpr(closed), target).run()


def row_reduction_sources(program: ClosedJaxpr) -> set[Var]:
    """Return the variables that flow into a reduction along their last dimension.

    They do so through elementwise operations and views that keep the number of elements.
    """
    sources: set[Var] = set()
    for eqn in reversed(program.eqns):
        if reduces_rows(eqn):
            sources.update(v for v in eqn.invars if isinstance(v, Var))
        elif eqn.outvars and eqn.outvars[0] in sources and (is_view(eqn) or is_elementwise(eqn)):
            size = eqn.outvars[0].aval.size
            sources.update(v for v in eqn.invars if isinstance(v, Var) and v.aval.size == size)
    return sources


class _Fusion:
    """Fusion in progress: the groups so far, and the views that are not in memory."""

    def __init__(self, program: ClosedJaxpr, target: Target) -> None:
        self.program = program
        self.target = target
        self.most_buffers = target.capabilities.kernel_buffers
        self.most_equations = target.capabilities.kernel_equations
        self.uses = Counter(v for v in (*[v for eqn in program.eqns for v in eqn.invars], *program.jaxpr.outvars) if isinstance(v, Var))
        #: Equations of variables that are not in memory, and how many views deep they are.
        self.views: dict[Var, Equation] = {}
        self.depth: dict[Var, int] = {}
        self.numbers: dict[Var, int] = {}
        #: The producer of a variable: a group, or the position of an equation.
        self.producers: dict[Var, Group | int] = {}
        #: The last group that loads a variable.
        self.consumers: dict[Var, Group] = {}
        self.items: list[Group | Equation | None] = []
        #: Operands of products, which are not recomputed, because products read them many times.
        self.product_operands: set[Atom] = set()
        self.lowering = LoweringCache()
        self.row_reduction_sources = row_reduction_sources(program)
        self.comparisons: dict[Var, Comparison] = comparisons(program) if target.capabilities.fp_contract else {}

    def run(self) -> FusedProgram:
        for number, eqn in enumerate(self.program.eqns):
            for out in eqn.outvars:
                self.numbers[out] = number
            self.add(eqn)
        outputs = self.program.jaxpr.outvars
        for result in outputs:
            self.materialise(result)
        materialised = {v for item in self.items if isinstance(item, Equation) for v in item.invars}.union(outputs, self.product_operands)
        fixed = frozenset().union(*[comparison.sources for comparison in self.comparisons.values()])
        recompute([item for item in self.items if isinstance(item, Group)], materialised, self.target.capabilities, fixed)
        self.merge_columns()
        return FusedProgram(self.program, lower_groups([item for item in self.items if item is not None], outputs, self.most_buffers))

    def add(self, eqn: Equation) -> None:
        if is_product(eqn):
            self.add_product(eqn)
        elif not can_be_kernel(eqn) or not self.target.computes(eqn) or self.reads_too_much(eqn):
            self.keep(eqn)
        elif is_view(eqn) or eqn.primitive is iota_p:
            self.add_view(eqn)
        elif eqn.primitive in (pad_p, concatenate_p):
            self.add_concatenation(eqn)
        elif not self.try_join(eqn):
            self.begin_group(eqn)

    # producers and operands in memory

    def base(self, atom: Atom) -> Var | None:
        """Return the variable in memory, or of a group, that is viewed; None for literals."""
        while isinstance(atom, Var) and atom in self.views:
            invars = self.views[atom].invars
            if not invars:
                return None
            atom = invars[0]
        return atom if isinstance(atom, Var) else None

    def position(self, var: Var) -> int:
        """Return the position of a variable's producer; -1 for inputs."""
        producer = self.producers.get(var, -1)
        return producer.position if isinstance(producer, Group) else producer

    def bases(self, eqn: Equation) -> list[Var]:
        """Return the variables that an equation reads through views, each once."""
        bases = [self.base(v) for v in eqn.invars]
        return list(dict.fromkeys([v for v in bases if v is not None]))

    def reads_too_much(self, eqn: Equation) -> bool:
        """Return True if the equation alone needs more buffers than a kernel may have."""
        return len(eqn.invars) >= self.most_buffers and len(self.bases(eqn)) >= self.most_buffers

    # views, and equations that stay equations

    def add_view(self, eqn: Equation) -> None:
        """Record a view; store its operand first if indices cannot express it."""
        (out,) = eqn.outvars
        operand = eqn.invars[0] if eqn.invars else None
        depth = self.depth.get(operand, 0) + 1 if isinstance(operand, Var) else 0
        if operand is not None and (depth > _DEEPEST_VIEW or not is_readable(eqn, self.views)):
            self.materialise(operand)
            depth = 1
        self.views[out] = eqn
        self.depth[out] = depth
        if self.is_stored_transposed(eqn):
            self.store_as_view(eqn)

    def is_stored_transposed(self, eqn: Equation) -> bool:
        """Return True for a transpose that is a product's only use, stored so at no cost."""
        (operand,) = eqn.invars or (None,)
        producer = self.producers.get(operand) if eqn.primitive is transpose_p and isinstance(operand, Var) else None
        return isinstance(producer, Group) and producer.is_product and self.is_only_use(eqn) and producer.walks_free_axes(eqn)

    def keep(self, eqn: Equation) -> None:
        for atom in eqn.invars:
            self.materialise(atom)
        for out in eqn.outvars:
            self.producers[out] = len(self.items)
        self.items.append(eqn)

    def add_product(self, eqn: Equation) -> None:
        """Begin a group with a product, if the target has it as a kernel."""
        # Operands are read through views where that is as good.
        loop = product_loop(eqn)
        is_sum = bool(loop.reduction_axes) and 0 not in loop.sizes
        through_views: list[Atom] = [
            v for v in eqn.invars if is_sum and v in self.views and self.base(v) is not None and self.keeps_as_kernel(loop, [v])
        ]
        for atom in eqn.invars:
            if atom not in through_views:
                self.materialise(atom)
        if not is_sum or not self.keeps_as_kernel(loop, through_views):
            self.keep(eqn)
            return
        group = Group(len(self.items), loop.sizes)
        self.items.append(group)
        self.compute_in(group, eqn, loop.steps[0].at)
        self.product_operands.update(self.bases(eqn))

    def keeps_as_kernel(self, loop: Loop, through: list[Atom]) -> bool:
        """Return True if the target has a product with these views as a kernel."""
        views: dict[Var, Equation] = {}
        for atom in through:
            while isinstance(atom, Var) and atom in self.views:
                views[atom] = self.views[atom]
                (atom,) = views[atom].invars
        try:
            return self.target.keeps_as_kernel(self.lowering.kernel_of(loop, views).kernel)
        except NotAffine:
            return False

    def materialise(self, atom: Atom) -> None:
        """Store a variable in memory, unless it is there."""
        if not isinstance(atom, Var):
            return
        eqn = self.views.get(atom)
        if eqn is None:
            producer = self.producers.get(atom)
            if isinstance(producer, Group):
                producer.required[atom] = None
                producer.first_consumer = min(producer.first_consumer, len(self.items))
            return
        # An alias whose operand has other uses stays an equation: the operand is stored for those, and the alias shares its memory.
        is_stored = (not is_alias(eqn) or self.is_only_use(eqn)) and self.store_as_view(eqn)
        if is_alias(eqn) and not is_stored:
            del self.views[atom]
            self.keep(eqn)
            return
        if not is_stored:
            self.begin_group(eqn)
        self.materialise(atom)

    def is_only_use(self, eqn: Equation) -> bool:
        """Return True if nothing else reads the operand of a view."""
        (operand,) = eqn.invars
        return isinstance(operand, Var) and self.uses[operand] == 1

    def store_as_view(self, eqn: Equation) -> bool:
        """Let the group that computes a view's operand store it as the view, if it can."""
        (out,) = eqn.outvars
        base = self.base(out)
        producer = None if base is None else self.producers.get(base)
        if not isinstance(producer, Group):
            return False
        index = producer.find_index(out, self.views)
        if (
            index is None
            or not producer.can_store(index, out.aval.shape)
            or self.buffers_with(producer, self.bases(eqn)) > self.most_buffers
        ):
            return False
        if len(producer.steps) >= self.most_equations or (
            self.scatters_row(producer, index) and not self.target.capabilities.scatters_rows
        ):
            return False
        self.compute_in(producer, eqn, producer.store_index(index))
        return True

    def scatters_row(self, group: Group, index: PartialIndex) -> bool:
        """Return True if elements of a row are not neighbours in an array at an index."""
        axes = [i.axes for i in index if i is not None and i.axes]
        return bool(axes) and not axes[-1] & group.row and any(each & group.row for each in axes)

    def add_concatenation(self, eqn: Equation) -> None:
        """Begin a group with a pad or a concatenation, if indices can express it."""
        (out,) = eqn.outvars
        sizes, index = loop_over(out.aval.shape)
        loop = Loop(sizes, frozenset(), (IndexedEquation(eqn, index),), ((out, index),))
        if not self._is_affine(loop):
            for atom in eqn.invars:
                self.materialise(atom)
            if not self._is_affine(loop):
                self.keep(eqn)
                return
        self.begin_group(eqn)

    def _is_affine(self, loop: Loop) -> bool:
        """Return True if a loop can be a kernel, its operands read through views."""
        try:
            lower_loop(loop, self.views)
        except NotAffine:
            return False
        return True

    # groups

    def begin_group(self, eqn: Equation) -> None:
        """Begin a group, which groups join that compute operands once per row of its loop."""
        sizes, index = loop_over(eqn.invars[0].aval.shape if reduces(eqn) else eqn.outvars[0].aval.shape)
        group = Group(len(self.items), sizes)
        self.items.append(group)
        for base in self.bases(eqn):
            producer = self.producers.get(base)
            if isinstance(producer, Group) and producer.reduction_axes is None and producer.first_consumer >= group.position:
                row = math.prod(sizes[len(producer.sizes) :])
                if 0 < len(producer.sizes) < len(sizes) and row <= self.target.capabilities.longest_row:
                    self.try_merge(producer, group, eqn, index)
        self.compute_in(group, eqn, index)

    def try_join(self, eqn: Equation) -> bool:
        """Add an equation to a group that produces or reads its operands.

        Return False if none can take it.
        """
        operand_bases = [self.base(v) for v in eqn.invars]
        bases = list(dict.fromkeys([v for v in operand_bases if v is not None]))
        producers = {id(g): g for v in bases if isinstance(g := self.producers.get(v), Group)}
        consumers = {id(g): g for v in bases if (g := self.consumers.get(v)) is not None and id(g) not in producers}
        candidates = sorted(producers.values(), key=lambda g: -g.position) + sorted(consumers.values(), key=lambda g: -g.position)
        for group in candidates:
            if self.items[group.position] is not group:  # another candidate absorbed it
                continue
            index = self.index_in(group, eqn, operand_bases)
            for other in candidates:
                if index is not None and other is not group and self.items[other.position] is other:
                    group = self.try_merge(other, group, eqn, index)
                    index = self.index_in(group, eqn, operand_bases)
            others = [self.position(v) for v in bases if self.producers.get(v) is not group]
            fits = self.buffers_with(group, bases) <= self.most_buffers and len(group.steps) < self.most_equations
            if index is not None and max(others, default=-1) < group.position and fits:
                self.compute_in(group, eqn, index)
                return True
        return False

    def index_in(self, group: Group, eqn: Equation, operand_bases: list[Var | None]) -> Index | None:
        """Return the index at which a group can compute an equation, if any.

        `operand_bases` are the variables that the operands are views of.
        """
        if group.feeds_row_reduction and group.reduction_axes is None and reduces(eqn) and not reduces_rows(eqn):
            return None  # it would make the loop over rows one over columns
        if not self.must_load(eqn).isdisjoint(group.members):
            return None
        produced = [base is not None and self.producers.get(base) is group for base in operand_bases]
        index = group.index_of(eqn, produced, self.views)
        if index is None or not (any(produced) or reduces(eqn) or group.follows(index)):
            return None
        if not group.reduction_axes:
            return index
        revisits_row = bool(axes_of(index) & group.row) and any(
            is_produced and group.is_per_row(v) for is_produced, v in zip(produced, eqn.invars, strict=True)
        )
        return None if revisits_row and group.size_of(group.row) > self.target.capabilities.longest_row else index

    def compute_in(self, group: Group, eqn: Equation, index: Index) -> None:
        (out,) = eqn.outvars
        for atom in eqn.invars:
            self.record_reads(group, atom)
        group.add(self.numbers[out], eqn, index)
        group.feeds_row_reduction = group.feeds_row_reduction or out in self.row_reduction_sources
        group.must_load |= self.must_load(eqn)
        self.views.pop(out, None)
        self.producers[out] = group

    def must_load(self, eqn: Equation) -> frozenset[Var]:
        """Return the values that an equation's group must load rather than compute."""
        # The equation compares them with what another pass over them chose, and both must have the same rounding.
        comparison = self.comparisons.get(eqn.outvars[0])
        return frozenset() if comparison is None else comparison.sources_behind_reduction

    def record_reads(self, group: Group, atom: Atom) -> None:
        while isinstance(atom, Var) and atom in self.views:
            eqn = group.read_views[atom] = self.views[atom]
            if not eqn.invars:
                return
            atom = eqn.invars[0]
        if not isinstance(atom, Var):
            return
        producer = self.producers.get(atom)
        if producer is group:
            return
        group.reads[atom] = None
        self.consumers[atom] = group
        if isinstance(producer, Group):
            producer.required[atom] = None
            producer.first_consumer = min(producer.first_consumer, group.position)

    def buffers_with(self, group: Group, bases: list[Var]) -> int:
        new = [v for v in bases if v not in group.reads and self.producers.get(v) is not group]
        return len(group.reads) + len(new) + len(group.required) + 1

    # merging

    def try_merge(self, guest: Group, host: Group, eqn: Equation, index: Index) -> Group:
        """Merge two groups that meet in an equation, if possible; else return the host."""
        if not self.must_load(eqn).isdisjoint(guest.members):
            return host
        embedding = embedding_of(guest, host, eqn, index, self.views)
        return host if embedding is None else self.merge(guest, host, embedding)

    def merge(self, guest: Group, host: Group, embedding: Embedding) -> Group:
        """Merge two groups, if their order and buffers allow it; else return the host."""
        early, late = sorted((guest, host), key=lambda g: g.position)
        can_move_up = all(self.position(v) <= early.position for v in late.reads)
        can_move_down = early.first_consumer >= late.position
        if not (can_move_up or can_move_down) or self.buffers_together(guest, host) >= self.most_buffers:
            return host
        if len(guest.steps) + len(host.steps) >= self.most_equations:
            return host
        if not (guest.must_load.isdisjoint(host.members) and host.must_load.isdisjoint(guest.members)):
            return host
        if len(guest.steps) > len(host.steps) and len(embedding.axes) == len(host.sizes):  # so that all merges together take linear time
            guest, host, embedding = host, guest, embedding.inverse()
        self.items[early.position] = self.items[late.position] = None
        host.position = late.position if can_move_down else early.position
        self.items[host.position] = host
        host.absorb(guest, embedding.axes)
        host.reduction_axes = embedding.reduction_axes
        for var in guest.members:
            self.producers[var] = host
        for var in host.reads:
            self.consumers[var] = host
            if isinstance(producer := self.producers.get(var), Group):
                producer.first_consumer = min(producer.first_consumer, host.position)
        return host

    def buffers_together(self, guest: Group, host: Group) -> int:
        return len(guest.reads.keys() | host.reads.keys()) + len(guest.required) + len(host.required)

    def merge_columns(self) -> None:
        """Merge reductions over columns of the same arrays that no equation joined."""
        consumers: dict[Var, list[Group]] = {}
        for item in self.items:
            if not isinstance(item, Group) or item.reduction_axes is None:
                continue
            group = item
            for var in item.reads:
                others = consumers.setdefault(var, [])
                group = self._merge_with_first(others, group)
                others.append(group)

    def _merge_with_first(self, others: Sequence[Group], group: Group) -> Group:
        """Merge a group with the first of others that reduces over the same columns.

        Return the merged group, or the unchanged one if none fits.
        """
        for other in others:
            embedding = embedding_of_columns(other, group) if self.items[other.position] is other and other is not group else None
            if embedding is not None:
                return self.merge(other, group, embedding)
        return group


# The end of fusion: groups become kernels.
#
# Groups are lowered from the last to the first, so that each stores just what later ones load. A group that needs too many buffers is
# split in runs of its steps.


def lower_groups(items: Iterable[Group | Equation], outputs: Iterable[Atom], limit: int) -> tuple[ProgramNode, ...]:
    """Return the nodes of a program; kernels have at most `limit` buffers."""
    needed: set[Atom] = set(outputs)
    result: list[ProgramNode] = []
    lowering = LoweringCache()
    for item in reversed(list(items)):
        new = _lower_group(item, needed, limit, lowering) if isinstance(item, Group) else [item]
        for node in new:
            needed.update(reads(node))
        result += reversed(new)
    return tuple(reversed(result))


def _lower_group(group: Group, needed: Collection[Atom], limit: int, lowering: LoweringCache) -> list[ProgramNode]:
    """Return a group's kernels, or its equations if there is no kernel for them.

    It is one kernel, unless that would need too many buffers.
    """
    try:
        return _kernel_calls(group, group.read_views | group.recomputed, needed, limit, lowering)
    except NotAffine:
        pass
    try:
        return _kernel_calls(group, group.read_views, needed, limit, lowering)
    except NotAffine:
        return list(_as_equations(group, needed))


def _kernel_calls(
    group: Group, through: Mapping[Var, Equation], needed: Collection[Atom], limit: int, lowering: LoweringCache
) -> list[ProgramNode]:
    views = {v: eqn for v, eqn in through.items() if v not in group.members}
    items: list[ProgramNode] = []
    for steps, results in _runs(group, views, needed, limit):
        outputs = tuple([(v, group.store_index(group.indices[v])) for v in results])
        kernel, operands = lowering.kernel_of(Loop(group.sizes, group.row, tuple(steps), outputs), views)
        items.append(KernelCall(kernel, operands, tuple(results)))
    return items


def _as_equations(group: Group, needed: Collection[Atom]) -> list[Equation]:
    """Return the steps of a group as equations, with copies of the views they read."""
    result: list[Equation] = []
    copies: dict[Var, Var] = {}
    live = set(needed)
    views = {v: eqn for v, eqn in group.read_views.items() if v not in group.members}

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
    """Split a group's steps into runs, each with the variables that it must store.

    A run is as long as the limit of buffers allows. The group reads through `views`; `needed` are its variables that others need.
    """
    steps = [group.steps[n] for n in sorted(group.steps)]
    reads = [list(loads(step.eqn, views)) for step in steps]
    last = {v: n for n, read in enumerate(reads) for v in read}
    start = 0
    while start < len(steps):
        end = _end_of_run(needed, steps, reads, last, start, limit)
        computed = [step.eqn.outvars[0] for step in steps[start:end]]
        results = [v for v in computed if v in needed or last.get(v, -1) >= end]
        if results:
            yield steps[start:end], results
        start = end


def _end_of_run(
    needed: Collection[Atom], steps: list[IndexedEquation], reads: list[list[Var]], last: dict[Var, int], start: int, limit: int
) -> int:
    """Return the end of the longest run from `start` with at most `limit` buffers."""
    best = start + 1
    loaded: set[Var] = set()
    computed: set[Var] = set()
    stored: set[Var] = set()
    for n in range(start, len(steps)):
        (out,) = steps[n].eqn.outvars
        loaded.update(v for v in reads[n] if v not in computed)
        computed.add(out)
        stored.difference_update(v for v in reads[n] if last[v] == n and v not in needed)
        if out in needed or last.get(out, -1) > n:
            stored.add(out)
        if len(loaded) > limit:
            break
        if len(loaded) + len(stored) <= limit:
            best = n + 1
    return best
