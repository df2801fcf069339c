"""Which values a pass over a row keeps for later passes, by their costs."""

from __future__ import annotations

from collections.abc import Iterable

from volta_fn.codegen.loops import passes
from volta_fn.codegen.loops.passes import Pass
from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.kernel import Apply, Constant, Load, Reduce, operands
from volta_fn.targets.cpu.scalars import cost

#: Nanoseconds per element that computing a value again must take for it to be worth keeping.
_KEPT = 0.15


def passes_of(analysis: KernelAnalysis, keeping: bool) -> list[Pass]:
    """Return the passes; if `keeping`, they keep what is expensive to compute again."""
    result = passes.passes_of(analysis)
    if keeping:
        _keep(analysis, result)
    return result


def _keep(analysis: KernelAnalysis, found: list[Pass]) -> None:
    """Have passes keep what is expensive and needed again."""
    computed: dict[int, int] = {}
    for number, here in enumerate(found):
        for n in _closure(analysis, here, computed, found):
            computed.setdefault(n, number)


def _closure(analysis: KernelAnalysis, here: Pass, computed: dict[int, int], passes: list[Pass]) -> set[int]:
    found: set[int] = set()
    waiting = here.targets(analysis)
    while waiting:
        n = waiting.pop()
        node = analysis.kernel.nodes[n]
        if n in found or isinstance(node, Reduce) or not analysis.depends[n] & analysis.reduction_axes:
            continue
        found.add(n)
        if n in computed and cost_of(analysis, [n]) > _KEPT:
            if n not in passes[computed[n]].keeps:
                passes[computed[n]].keeps.append(n)
            continue
        waiting += operands(node)
    return found


def cost_of(analysis: KernelAnalysis, targets: Iterable[int]) -> float:
    """Estimate the nanoseconds per element to compute nodes, without loads."""
    found: set[int] = set()
    waiting = list(targets)
    total = 0.0
    while waiting:
        n = waiting.pop()
        node = analysis.kernel.nodes[n]
        if n in found or isinstance(node, Reduce | Constant | Load):
            continue
        found.add(n)
        if isinstance(node, Apply):
            total += cost(node.op, tuple([analysis.kernel.nodes[i].dtype for i in node.operands]))
        waiting += operands(node)
    return total
