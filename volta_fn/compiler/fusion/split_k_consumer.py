"""Products whose sums are made in parts, which the kernel behind adds up.

A product of few results is best made as a stack of products of parts of its sum, so that there is work for a whole device. Adding them up
is little work, but somebody has to wait for it. Where a kernel that goes over rows reads the result, it adds the parts up, does what the
product would have done with the sums, and stores the result if somebody else needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from volta_fn.compiler.fusion.emit_kernels import Fused, Item, variables_made, variables_read
from volta_fn.compiler.fusion.prologue import joined
from volta_fn.compiler.fusion.split_k import Stacked, stacked
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.core.jaxpr import Atom, Var


class _Use(NamedTuple):
    """Who adds up: the number of the item that did not, what it is now, and before which item it stands."""

    number: int
    item: Fused
    place: int


def added_behind(
    items: Sequence[Item], outputs: Sequence[Atom], roots: Mapping[Var, Var], parts_of: Callable[[Kernel], int], buffers: int
) -> list[Item]:
    """The items with products in parts where those behind add them up; `parts_of` says in how many a product is best made.

    `roots` maps variables to those whose memory they are. No kernel gets more than so many buffers.
    """
    found = _Items(items, outputs, roots)
    standing: list[Item | None] = [*items]
    before: dict[int, list[Item]] = {}
    for number, item in enumerate(items):
        if not isinstance(item, Fused) or standing[number] is not item:
            continue
        stack = stacked(item, parts_of(item.kernel))
        use = None if stack is None else found.use(number, stack, standing)
        if stack is not None and use is not None and len(use.item.operands) + len(use.item.results) <= buffers:
            standing[number], standing[use.number] = stack.products, None
            before.setdefault(use.place, []).append(use.item)
    return [one for n, item in enumerate(standing) for one in (*before.get(n, []), *([] if item is None else [item]))]


class _Items:
    """Who reads what."""

    def __init__(self, items: Sequence[Item], outputs: Sequence[Atom], roots: Mapping[Var, Var]) -> None:
        self.items, self.roots = items, roots
        self.outputs = {self.root(v) for v in outputs if isinstance(v, Var)}
        self.readers: dict[Var, list[int]] = {}
        for number, item in enumerate(items):
            for var in self.read(item):
                self.readers.setdefault(var, []).append(number)

    def root(self, var: Var) -> Var:
        """Whose memory a variable is."""
        return self.roots.get(var, var)

    def read(self, item: Item) -> set[Var]:
        """What an item reads."""
        return {self.root(v) for v in variables_read(item)}

    def use(self, number: int, stack: Stacked, standing: Sequence[Item | None]) -> _Use | None:
        """The first reader of a product's results that may add up its parts, before any other reads them."""
        results = set(stack.adding.results)
        readers = sorted({n for v in results for n in self.readers.get(v, [])})
        for n in readers:
            reader = standing[n]
            if not isinstance(reader, Fused) or reader is not self.items[n]:
                continue
            between = {v for item in self.items[readers[0] : n] for v in variables_made(item)}
            if not between.isdisjoint(self.read(reader)):
                continue
            kept = {v for v in results if v in self.outputs or set(self.readers.get(v, [])) - {n}}
            item = joined(stack.adding, reader, kept, self.root)
            if item is not None:
                return _Use(n, item, readers[0])
        return None
