"""Passes over a row: what each reduces, stores and keeps for later ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from volta_fn.compiler.ir.analysis import KernelAnalysis


@dataclass
class Pass:
    """One pass over a row, by numbers of nodes and stores.

    First it does its stores per row; then, per element, it reduces, stores and keeps.
    """

    row_stores: list[int]
    reduces: list[int]
    stores: list[int]
    keeps: list[int] = field(default_factory=list)

    def targets(self, analysis: KernelAnalysis) -> list[int]:
        """Return the nodes that its iterations need."""
        reduced = [analysis.reduces[n].operand for n in self.reduces]
        return [*reduced, *[analysis.kernel.stores[s].value for s in self.stores], *self.keeps]

    @property
    def has_iterations(self) -> bool:
        """True if there is anything to do per element."""
        return bool(self.reduces or self.stores)


def passes_of(analysis: KernelAnalysis) -> list[Pass]:
    """Return the passes over a row of a kernel, which keep nothing."""
    result: list[Pass] = []
    for number in range(analysis.passes):
        stores = [s for s, store in enumerate(analysis.kernel.stores) if analysis.stages[store.value] == number]
        inside = [s for s in stores if analysis.store_axes(s) & analysis.reduction_axes]
        ready = [n for n in analysis.reduces if analysis.stages[n] == number + 1]
        result.append(Pass([s for s in stores if s not in inside], ready, inside))
    return result
