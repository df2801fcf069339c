"""What each pass over a row has to do."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.ir.analysis import KernelAnalysis


class Pass(NamedTuple):
    """One pass over a row: what is stored per row before it, and what is reduced and stored per element in it."""

    row_stores: tuple[int, ...]
    reduces: tuple[int, ...]
    stores: tuple[int, ...]

    def targets(self, facts: KernelAnalysis) -> list[int]:
        """The nodes that its turns need."""
        return [*[facts.reduces[n].operand for n in self.reduces], *[facts.kernel.stores[s].value for s in self.stores]]

    @property
    def has_turns(self) -> bool:
        """Whether there is anything to do per element."""
        return bool(self.reduces or self.stores)


def passes_of(facts: KernelAnalysis) -> tuple[Pass, ...]:
    """The passes over a row of a kernel."""
    result = []
    for number in range(facts.passes):
        stores = [s for s, store in enumerate(facts.kernel.stores) if facts.stages[store.value] == number]
        inside = tuple([s for s in stores if facts.store_axes(s) & facts.reduction_axes])
        ready = tuple([n for n in facts.reduces if facts.stages[n] == number + 1])
        result.append(Pass(tuple([s for s in stores if s not in inside]), ready, inside))
    return tuple(result)
