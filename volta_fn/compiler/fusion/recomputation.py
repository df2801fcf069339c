"""Recomputation: which values are cheaper to compute again than to store and load.

A minimum cut of the graph of values decides.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from volta_fn.compiler.fusion.groups import Group
from volta_fn.compiler.ir.index import is_elementwise, is_view
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.primitive import Primitive
from volta_fn.dtypes import INEXACT
from volta_fn.primitives.data_movement.movement import iota_p
from volta_fn.primitives.elementwise import arithmetic, selection

# Minimum cuts of acyclic graphs, by maximum flow.
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
#: Work for one value from which on it is stored.
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
