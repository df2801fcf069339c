"""Recomputation: some values are cheaper to compute again than to store and load.

A group may store values for later groups alone, as a forward pass does for a gradient. Where a few cheap scalar operations lead to such
values from others that are in memory anyway, or from fewer and smaller ones, their consumers compute them again from those. What to keep
in memory is a minimum cut between the values that are read and everything that is in memory or must not be computed twice: whatever is not
in `_WORK`, such as transcendental functions, divisions, reductions and random bits.

Where compilers of kernels may round a product and a sum once, two kernels, or two passes over a row, may round one value differently. A
comparison of a value with what was chosen from it, such as the largest of a row, then fails. The values that both operands of a comparison
are chosen from (`Comparison`) are computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from volta_fn.compiler.fusion.group import Group
from volta_fn.compiler.fusion.min_cut import NEVER, smallest_cut
from volta_fn.compiler.ir.views import is_elementwise, is_view
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.dtypes import INEXACT

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

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
#: Operations whose results are elements of their operands, or these with another sign or in another dtype.
_CHOICES = frozenset(
    "neg abs max min clamp select_n convert_element_type pad concatenate reduce_max reduce_min cummax cummin sort top_k gather "
    "wrapped_gather dynamic_slice dynamic_update_slice scatter scatter_max scatter_min reduce_window_max reduce_window_min "
    "select_and_gather_add".split()
)


class Comparison(NamedTuple):
    """Values from which both operands of a comparison are chosen."""

    #: All of them, and those of which one operand alone is chosen by more than elementwise operations: by a reduction, say.
    sources: frozenset[Var]
    reduced: frozenset[Var]


def comparisons(program: ClosedJaxpr) -> dict[Var, Comparison]:
    """Return the comparisons of values with choices from them, by result."""
    producers = {out: eqn for eqn in program.eqns for out in eqn.outvars}
    found: dict[Var, Comparison] = {}
    for eqn in program.eqns:
        if eqn.primitive.name in _COMPARISONS and eqn.invars[0].aval.dtype in INEXACT:
            left, right = [_sources(atom, producers) for atom in eqn.invars]
            sources = frozenset(v for v, _ in left) & frozenset(v for v, _ in right)
            if sources:
                reduced = frozenset(v for v, is_reduced in left if (v, not is_reduced) in right)
                found[eqn.outvars[0]] = Comparison(sources, reduced)
    return found


def _sources(atom: Atom, producers: Mapping[Var, Equation]) -> set[tuple[Var, bool]]:
    """Return the values from which one is chosen.

    Each has whether that takes more than elementwise operations, and may be rounded differently by another kernel.
    Sums of values in memory are not among them: they are rounded once, wherever they are computed.
    """
    found: set[tuple[Var, bool]] = set()
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
            found.add((at, reduced))
    return found


def _rounds_once(eqn: Equation, producers: Mapping[Var, Equation]) -> bool:
    """Return True for a sum or a product that compilers cannot contract.

    No operation that computes an operand makes one operation with it.
    """
    if eqn.primitive.name in ("add", "sub"):
        return all(_computes(atom, producers) in (None, "add", "sub") for atom in eqn.invars)
    return eqn.primitive.name == "mul" and all(_computes(atom, producers) in (None, "mul") for atom in eqn.invars)


def _computes(atom: Atom, producers: Mapping[Var, Equation]) -> str | None:
    """Return the elementwise operation of an operand; None if it is loaded.

    It is found through views and changes of sign.
    """
    while isinstance(atom, Var) and atom in producers:
        eqn = producers[atom]
        if not (is_view(eqn) and eqn.invars) and eqn.primitive.name not in ("neg", "abs"):
            return eqn.primitive.name if is_elementwise(eqn) else None
        atom = eqn.invars[0]
    return None


def recompute(groups: Iterable[Group], kept: Collection[Atom], capabilities: TargetCapabilities, fixed: Collection[Var] = ()) -> None:
    """Let groups recompute values of earlier ones, but for those that are `fixed`.

    `kept` has the variables that nodes other than groups need.
    """
    groups = list(groups)
    consumers: dict[Var, list[Group]] = {}
    for group in groups:
        for var in group.reads:
            consumers.setdefault(var, []).append(group)
    for group in groups:
        wanted = [
            v for v in group.members if v in consumers and v not in kept and v not in fixed and _is_worth(group.members[v], capabilities)
        ]
        if wanted:
            _Region(group, wanted, consumers, kept, fixed).apply(capabilities.kernel_buffers)


def _is_worth(eqn: Equation, capabilities: TargetCapabilities) -> bool:
    return eqn.outvars[0].aval.nbytes > capabilities.recompute_above and _work(eqn) is not None


def _bytes(var: Var) -> int:
    return var.aval.nbytes


def _work(eqn: Equation) -> int | None:
    """Return the work of an equation; None if it is not cheap."""
    if is_view(eqn) or eqn.primitive.name == "iota":
        return 0
    if eqn.primitive.name == "integer_pow" and not 0 <= eqn.params["y"] <= _POWER:
        return None
    return _WORK.get(eqn.primitive.name)


class _Region:
    """The equations from which a group computes the values that others want.

    They end at what is in memory, expensive, or fixed.
    """

    def __init__(
        self, group: Group, wanted: Sequence[Var], consumers: dict[Var, list[Group]], kept: Collection[Atom], fixed: Collection[Var]
    ) -> None:
        self.group = group
        self.fixed = fixed
        self.wanted = wanted
        self.consumers = consumers
        self.users = list(dict.fromkeys([g for v in wanted for g in consumers[v]]))
        self.cost: dict[Var, int] = {}
        self.below: dict[Var, list[Var]] = {}
        self.work: dict[Var, int] = {}
        self._explore()
        for var in self.cost:
            self.cost[var] = self._cost(var, kept)

    def equation(self, var: Var) -> Equation | None:
        """Return the equation of a variable in the group; None for what it loads."""
        group = self.group
        return group.members.get(var) or group.pulled.get(var) or group.recomputed.get(var)

    def _explore(self) -> None:
        """Find the region, deepest variables first."""
        stack = list(self.wanted)
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
        far = work > _MOST_WORK
        self.cost[var] = 0
        self.work[var] = 0 if far else work
        self.below[var] = [] if far else operands

    def _cost(self, var: Var, kept: Collection[Atom]) -> int:
        """Return the bytes to store and load if consumers load the variable."""
        if var not in self.group.members:
            if self.equation(var) is not None:
                return NEVER >> 8  # not in memory, and no step that could be stored
            return 0 if all(var in g.reads for g in self.users) else _bytes(var)
        is_stored = var in kept or (var in self.consumers and var not in self.wanted)
        return _bytes(var) if is_stored else 2 * _bytes(var)

    def apply(self, limit: int) -> None:
        """Find the cut, and let the consumers compute what is above it."""
        cut = smallest_cut(self.cost, self.below, self.wanted)
        ways = {v: self._equations_above_cut(v, cut) for v in self.wanted if v not in cut}
        plans = []
        for consumer in self.users:
            again = [v for v in consumer.reads if v in ways]
            loads = dict.fromkeys([v for v in consumer.reads if v not in ways])
            for var in again:
                loads |= dict.fromkeys(ways[var][1])
            if len(loads) + len(consumer.required) > limit:
                return
            plans.append((consumer, again, loads))
        for consumer, again, loads in plans:
            for var in again:
                consumer.recomputed |= ways[var][0]
            for var in loads.keys() - consumer.reads.keys():
                self.consumers.setdefault(var, []).append(consumer)
            consumer.reads = loads

    def _equations_above_cut(self, var: Var, cut: Collection[Var]) -> tuple[dict[Var, Equation], list[Var]]:
        """Return the equations from the cut to a variable, and the variables they load."""
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
