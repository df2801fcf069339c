"""Fusion: which equations of a program become which kernels.

One pass over the equations in their order. Views are not computed at all: whoever reads one reads what it shows at another index. An
equation that computes joins the kernel (`Group`) that made its operands, or that reads them, if the group's loop can compute it where it
has the operands at hand; what a group has computed is never computed again. Groups whose results meet in an equation become one group.

Groups stand in an order, and a group reads only what stands before it, so no two wait for each other: an equation joins a group only if
its other operands come from before that group, and two groups merge only if one can move to the other's position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from volta_fn.compiler.fusion.emit_kernels import emit
from volta_fn.compiler.fusion.group import Group
from volta_fn.compiler.fusion.merge import Union, union_of, union_of_columns
from volta_fn.compiler.fusion.recompute import recompute
from volta_fn.compiler.ir.index import Index, NotAffine, loop_over
from volta_fn.compiler.ir.nodes import FusedProgram
from volta_fn.compiler.ir.views import is_alias, is_elementwise, is_lowered, is_product, is_readable, is_view, known, reduces, reduces_rows
from volta_fn.compiler.lowering.equations import Loop, Step, lower, product_loop
from volta_fn.compiler.lowering.signature import Kernels
from volta_fn.compiler.target import Target
from volta_fn.core.dce import dce_jaxpr
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var

#: Views of views of … up to here are followed, then one is materialised.
_DEEPEST_VIEW = 16


def fuse(closed: ClosedJaxpr, target: Target) -> FusedProgram:
    """Group the equations of a program, whose calls are inlined, into kernels for a target."""
    return _Fuser(dce_jaxpr(closed), target).fused()


def row_bound(program: ClosedJaxpr) -> set[Var]:
    """The variables that lead, through elementwise operations and views of all of them, to a reduction along their last dimension."""
    found: set[Var] = set()
    for eqn in reversed(program.eqns):
        if reduces_rows(eqn):
            found.update(v for v in eqn.invars if isinstance(v, Var))
        elif eqn.outvars and eqn.outvars[0] in found and (is_view(eqn) or is_elementwise(eqn)):
            size = eqn.outvars[0].aval.size
            found.update(v for v in eqn.invars if isinstance(v, Var) and v.aval.size == size)
    return found


class _Fuser:
    def __init__(self, program: ClosedJaxpr, target: Target) -> None:
        self.program = program
        self.target = target
        self.most = target.capabilities.kernel_buffers
        self.longest = target.capabilities.kernel_equations
        self.uses = Counter(v for v in (*[v for eqn in program.eqns for v in eqn.invars], *program.jaxpr.outvars) if isinstance(v, Var))
        #: Equations of variables that are not in memory, and how many views deep they are.
        self.views: dict[Var, Equation] = {}
        self.depth: dict[Var, int] = {}
        self.numbers: dict[Var, int] = {}
        #: Who makes a variable: a group, or the position of an equation.
        self.producers: dict[Var, Group | int] = {}
        #: The last group that loads a variable.
        self.readers: dict[Var, Group] = {}
        self.items: list[Group | Equation | None] = []
        #: What products multiply, which is not computed again while it is read.
        self.multiplied: set[Atom] = set()
        self.kernels = Kernels()
        self.row_bound = row_bound(program)

    def fused(self) -> FusedProgram:
        """Go over the equations, then lower the groups."""
        for number, eqn in enumerate(self.program.eqns):
            for out in eqn.outvars:
                self.numbers[out] = number
            self.equation(eqn)
        outputs = self.program.jaxpr.outvars
        for result in outputs:
            self.materialise(result)
        kept = {v for item in self.items if isinstance(item, Equation) for v in item.invars}.union(outputs, self.multiplied)
        recompute([item for item in self.items if isinstance(item, Group)], kept, self.target.capabilities)
        self.merge_columns()
        return FusedProgram(self.program, emit([item for item in self.items if item is not None], outputs, self.most))

    def equation(self, eqn: Equation) -> None:
        """Find a place for the next equation."""
        if is_product(eqn):
            self.product(eqn)
        elif not is_lowered(eqn) or not self.target.computes(eqn) or self.reads_too_much(eqn):
            self.apart(eqn)
        elif is_view(eqn) or eqn.primitive.name == "iota":
            self.view(eqn)
        elif eqn.primitive.name in ("pad", "concatenate"):
            self.joining(eqn)
        elif not self.join(eqn):
            self.new_group(eqn)

    # who stands where

    def base(self, atom: Atom) -> Var | None:
        """The variable in memory, or in a group, that a variable is or shows; None for literals and the like."""
        while isinstance(atom, Var) and atom in self.views:
            invars = self.views[atom].invars
            if not invars:
                return None
            atom = invars[0]
        return atom if isinstance(atom, Var) else None

    def position(self, var: Var) -> int:
        """The position of what makes a variable; -1 for inputs."""
        producer = self.producers.get(var, -1)
        return producer.position if isinstance(producer, Group) else producer

    def bases(self, eqn: Equation) -> list[Var]:
        """What an equation reads, without repetition."""
        found = [self.base(v) for v in eqn.invars]
        return list(dict.fromkeys([v for v in found if v is not None]))

    def reads_too_much(self, eqn: Equation) -> bool:
        """Whether the equation alone needs more buffers than a kernel may have."""
        return len(eqn.invars) >= self.most and len(self.bases(eqn)) >= self.most

    # views, and equations that stay equations

    def view(self, eqn: Equation) -> None:
        """Note a view; what it shows is put in memory if indices cannot say what the view does."""
        (out,) = eqn.outvars
        operand = eqn.invars[0] if eqn.invars else None
        depth = self.depth.get(operand, 0) + 1 if isinstance(operand, Var) else 0
        if operand is not None and (depth > _DEEPEST_VIEW or not is_readable(eqn, self.views)):
            self.materialise(operand)
            depth = 1
        self.views[out] = eqn
        self.depth[out] = depth
        if self.is_stored_transposed(eqn):
            self.join_as_output(eqn)

    def is_stored_transposed(self, eqn: Equation) -> bool:
        """Whether a view is a transpose of a product that nobody else reads: storing the product in another order costs nothing."""
        (operand,) = eqn.invars or (None,)
        maker = self.producers.get(operand) if eqn.primitive.name == "transpose" and isinstance(operand, Var) else None
        return isinstance(maker, Group) and maker.is_product and self.is_only_use(eqn) and maker.walks_free_axes(eqn)

    def apart(self, eqn: Equation) -> None:
        """An equation of its own, not in a kernel."""
        for atom in eqn.invars:
            self.materialise(atom)
        for out in eqn.outvars:
            self.producers[out] = len(self.items)
        self.items.append(eqn)

    def product(self, eqn: Equation) -> None:
        """A product begins a group, if the backend has it as a kernel; operands are read through views where that is as good."""
        loop = product_loop(eqn)
        is_sum = bool(loop.reduced) and 0 not in loop.sizes
        far: list[Atom] = [v for v in eqn.invars if is_sum and v in self.views and self.base(v) is not None and self.contracts(loop, [v])]
        for atom in eqn.invars:
            if atom not in far:
                self.materialise(atom)
        if not is_sum or not self.contracts(loop, far):
            self.apart(eqn)
            return
        group = Group(len(self.items), loop.sizes)
        self.items.append(group)
        self.join_group(group, eqn, loop.steps[0].at)
        self.multiplied.update(self.bases(eqn))

    def contracts(self, loop: Loop, through: list[Atom]) -> bool:
        """Whether the backend has a product that reads some of its operands through views as a kernel."""
        views: dict[Var, Equation] = {}
        for atom in through:
            while isinstance(atom, Var) and atom in self.views:
                views[atom] = self.views[atom]
                (atom,) = views[atom].invars
        try:
            return self.target.contracts(self.kernels.lowered(loop, views).kernel)
        except NotAffine:
            return False

    def materialise(self, atom: Atom) -> None:
        """See to it that a variable is in memory from now on."""
        if not isinstance(atom, Var):
            return
        eqn = self.views.get(atom)
        if eqn is None:
            producer = self.producers.get(atom)
            if isinstance(producer, Group):
                producer.required[atom] = None
                producer.first_reader = min(producer.first_reader, len(self.items))
            return
        if is_alias(eqn) and not (self.is_only_use(eqn) and self.join_as_output(eqn)):
            del self.views[atom]
            self.apart(eqn)
            return
        if atom in self.views and not self.join_as_output(eqn):
            self.new_group(eqn)
        self.materialise(atom)

    def is_only_use(self, eqn: Equation) -> bool:
        """Whether nobody else reads the operand of a view."""
        (operand,) = eqn.invars
        return isinstance(operand, Var) and self.uses[operand] == 1

    def join_as_output(self, eqn: Equation) -> bool:
        """Let the group that computes what a view shows store it as the view."""
        (out,) = eqn.outvars
        base = self.base(out)
        producer = None if base is None else self.producers.get(base)
        if not isinstance(producer, Group):
            return False
        place = producer.find_place(out, self.views)
        if place is None or not producer.can_store(place, out.aval.shape) or self.buffers_with(producer, self.bases(eqn)) > self.most:
            return False
        if len(producer.steps) >= self.longest:
            return False
        self.join_group(producer, eqn, producer.store_index(place))
        return True

    def joining(self, eqn: Equation) -> None:
        """A pad or a concatenation begins a group, if indices can say what it does."""
        (out,) = eqn.outvars
        sizes, index = loop_over(out.aval.shape)
        loop = Loop(sizes, frozenset(), (Step(eqn, index),), ((out, index),))
        if not self._is_affine(loop):
            for atom in eqn.invars:
                self.materialise(atom)
            if not self._is_affine(loop):
                self.apart(eqn)
                return
        self.new_group(eqn)

    def _is_affine(self, loop: Loop) -> bool:
        """Whether a loop can be a kernel, its operands read through views."""
        try:
            lower(loop, self.views)
        except NotAffine:
            return False
        return True

    # groups

    def new_group(self, eqn: Equation) -> None:
        """Begin a group with an equation, and with what is computed of its operands per row of the new loop."""
        sizes, index = loop_over(eqn.invars[0].aval.shape if reduces(eqn) else eqn.outvars[0].aval.shape)
        group = Group(len(self.items), sizes)
        self.items.append(group)
        for base in self.bases(eqn):
            maker = self.producers.get(base)
            if isinstance(maker, Group) and maker.reduced is None and maker.first_reader >= group.position:
                row = math.prod(sizes[len(maker.sizes) :])
                if 0 < len(maker.sizes) < len(sizes) and row <= self.target.capabilities.longest_row:
                    self.merged(maker, group, eqn, index)
        self.join_group(group, eqn, index)

    def join(self, eqn: Equation) -> bool:
        """Put an equation into a group that makes or reads its operands; False if none can take it."""
        shown = [self.base(v) for v in eqn.invars]
        bases = list(dict.fromkeys([v for v in shown if v is not None]))
        makers = {id(g): g for v in bases if isinstance(g := self.producers.get(v), Group)}
        readers = {id(g): g for v in bases if (g := self.readers.get(v)) is not None and id(g) not in makers}
        candidates = sorted(makers.values(), key=lambda g: -g.position) + sorted(readers.values(), key=lambda g: -g.position)
        for group in candidates:
            if self.items[group.position] is not group:  # it became part of another candidate
                continue
            index = self.index_in(group, eqn, shown)
            for other in candidates:
                if index is not None and other is not group and self.items[other.position] is other:
                    group = self.merged(other, group, eqn, index)
                    index = self.index_in(group, eqn, shown)
            others = [self.position(v) for v in bases if self.producers.get(v) is not group]
            fits = self.buffers_with(group, bases) <= self.most and len(group.steps) < self.longest
            if index is not None and max(others, default=-1) < group.position and fits:
                self.join_group(group, eqn, index)
                return True
        return False

    def index_in(self, group: Group, eqn: Equation, shown: list[Var | None]) -> Index | None:
        """Where a group can compute an equation, whose operands show these variables, if anywhere."""
        if group.row_bound and group.reduced is None and reduces(eqn) and not reduces_rows(eqn):
            return None  # it would turn a loop over rows into one over columns
        produced = [base is not None and self.producers.get(base) is group for base in shown]
        index = group.index_of(eqn, produced, self.views)
        if index is None or not (any(produced) or reduces(eqn) or group.follows(index)):
            return None
        if not group.reduced:
            return index
        again = bool(known(index) & group.row) and any(own and group.is_per_row(v) for own, v in zip(produced, eqn.invars, strict=True))
        return None if again and group.size_of(group.row) > self.target.capabilities.longest_row else index

    def join_group(self, group: Group, eqn: Equation, index: Index) -> None:
        """Compute an equation in a group."""
        (out,) = eqn.outvars
        for atom in eqn.invars:
            self.pull(group, atom)
        group.add(self.numbers[out], eqn, index)
        group.row_bound = group.row_bound or out in self.row_bound
        self.views.pop(out, None)
        self.producers[out] = group

    def pull(self, group: Group, atom: Atom) -> None:
        """Note which views a group reads through and what it loads."""
        while isinstance(atom, Var) and atom in self.views:
            eqn = group.pulled[atom] = self.views[atom]
            if not eqn.invars:
                return
            atom = eqn.invars[0]
        if not isinstance(atom, Var):
            return
        producer = self.producers.get(atom)
        if producer is group:
            return
        group.reads[atom] = None
        self.readers[atom] = group
        if isinstance(producer, Group):
            producer.required[atom] = None
            producer.first_reader = min(producer.first_reader, group.position)

    def buffers_with(self, group: Group, bases: list[Var]) -> int:
        """How many buffers the group is known to need if it takes an equation that reads these variables."""
        new = [v for v in bases if v not in group.reads and self.producers.get(v) is not group]
        return len(group.reads) + len(new) + len(group.required) + 1

    # merging

    def merged(self, guest: Group, host: Group, eqn: Equation, index: Index) -> Group:
        """Two groups that meet in an equation as one, if they can be; else the host."""
        union = union_of(guest, host, eqn, index, self.views)
        return host if union is None else self.united(guest, host, union)

    def united(self, guest: Group, host: Group, union: Union) -> Group:
        """Two groups whose loops are one as one, if their order and their number of buffers allow it; else the host."""
        early, late = sorted((guest, host), key=lambda g: g.position)
        up = all(self.position(v) <= early.position for v in late.reads)
        down = early.first_reader >= late.position
        if not (up or down) or self.buffers_together(guest, host) >= self.most:
            return host
        if len(guest.steps) + len(host.steps) >= self.longest:
            return host
        if len(guest.steps) > len(host.steps) and len(union.axes) == len(host.sizes):  # so that all merges together take linear time
            guest, host, union = host, guest, union.inverse()
        self.items[early.position] = self.items[late.position] = None
        host.position = late.position if down else early.position
        self.items[host.position] = host
        host.absorb(guest, union.axes)
        host.reduced = union.reduced
        for var in guest.members:
            self.producers[var] = host
        for var in host.reads:
            self.readers[var] = host
            if isinstance(producer := self.producers.get(var), Group):
                producer.first_reader = min(producer.first_reader, host.position)
        return host

    def buffers_together(self, guest: Group, host: Group) -> int:
        """How many buffers two groups, neither of which reads from the other, are known to need as one."""
        return len(guest.reads.keys() | host.reads.keys()) + len(guest.required) + len(host.required)

    def merge_columns(self) -> None:
        """Merge reductions over columns of the same arrays, which no equation brought together."""
        readers: dict[Var, list[Group]] = {}
        for item in self.items:
            if not isinstance(item, Group) or item.reduced is None:
                continue
            for var in item.reads:
                others = readers.setdefault(var, [])
                self._merge_with_first(others, item)
                others.append(item)

    def _merge_with_first(self, others: Sequence[Group], group: Group) -> None:
        """Merge a group with the first of some others that are still there and reduce over the same columns."""
        for other in others:
            union = union_of_columns(other, group) if self.items[other.position] is other and other is not group else None
            if union is not None:
                self.united(other, group, union)
                return
