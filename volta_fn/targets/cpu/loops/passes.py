"""What each pass over a row has to do, and what it keeps for later passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.kernel import Apply, Constant, Load, Reduce, operands
from volta_fn.targets.cpu.scalars import cost

#: Nanoseconds per element that computing a value again must take for it to be worth keeping.
_KEPT = 0.15


@dataclass
class Pass:
    """One pass over a row: what is stored per row before it, then what is reduced, stored and kept per element."""

    row_stores: list[int]
    reduces: list[int]
    stores: list[int]
    keeps: list[int] = field(default_factory=list)

    def targets(self, facts: KernelAnalysis) -> list[int]:
        """The nodes that its turns need."""
        reduced = [facts.reduces[n].operand for n in self.reduces]
        return [*reduced, *[facts.kernel.stores[s].value for s in self.stores], *self.keeps]

    @property
    def has_turns(self) -> bool:
        """Whether there is anything to do per element."""
        return bool(self.reduces or self.stores)


def passes_of(facts: KernelAnalysis, keeping: bool) -> list[Pass]:
    """The passes; what is dear is kept, if `keeping`."""
    result: list[Pass] = []
    for number in range(facts.passes):
        stores = [s for s, store in enumerate(facts.kernel.stores) if facts.stages[store.value] == number]
        inside = [s for s in stores if facts.store_axes(s) & facts.reduction_axes]
        ready = [n for n in facts.reduces if facts.stages[n] == number + 1]
        result.append(Pass([s for s in stores if s not in inside], ready, inside))
    if keeping:
        _keep(facts, result)
    return result


def _keep(facts: KernelAnalysis, passes: list[Pass]) -> None:
    """Have passes keep what they compute, is dear, and is needed again."""
    computed: dict[int, int] = {}
    for number, here in enumerate(passes):
        for n in _closure(facts, here, computed, passes):
            computed.setdefault(n, number)


def _closure(facts: KernelAnalysis, here: Pass, computed: dict[int, int], passes: list[Pass]) -> set[int]:
    found: set[int] = set()
    waiting = here.targets(facts)
    while waiting:
        n = waiting.pop()
        node = facts.kernel.nodes[n]
        if n in found or isinstance(node, Reduce) or not facts.depends[n] & facts.reduction_axes:
            continue
        found.add(n)
        if n in computed and cost_of(facts, [n]) > _KEPT:
            if n not in passes[computed[n]].keeps:
                passes[computed[n]].keeps.append(n)
            continue
        waiting += operands(node)
    return found


def cost_of(facts: KernelAnalysis, targets: Iterable[int]) -> float:
    """About how many nanoseconds it takes per element to compute nodes, what they read included, loads from memory apart."""
    found: set[int] = set()
    waiting = list(targets)
    total = 0.0
    while waiting:
        n = waiting.pop()
        node = facts.kernel.nodes[n]
        if n in found or isinstance(node, Reduce | Constant | Load):
            continue
        found.add(n)
        if isinstance(node, Apply):
            total += cost(node.op, tuple([facts.kernel.nodes[i].dtype for i in node.operands]))
        waiting += operands(node)
    return total
