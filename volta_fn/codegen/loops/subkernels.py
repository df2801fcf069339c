"""Kernels made of nodes of other kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Node, Reduce, operands


class Nodes:
    """The nodes of a kernel under construction, mostly another kernel's."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.nodes: list[Node] = []
        #: The numbers here of nodes of the other kernel.
        self.new: dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Add a node, and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def copy(self, targets: Iterable[int]) -> None:
        """Copy nodes and their operands, except those that have a counterpart here."""
        for n in closure(self.kernel, targets, self.new):
            node = self.kernel.nodes[n]
            if isinstance(node, Apply):
                node = replace(node, operands=tuple([self.new[i] for i in node.operands]))
            elif isinstance(node, Reduce):
                node = replace(node, operand=self.new[node.operand])
            self.new[n] = self.add(node)


def closure(kernel: Kernel, targets: Iterable[int], known: Iterable[int] = ()) -> list[int]:
    """Return the nodes that some nodes depend on, in order, without the known ones."""
    known = set(known)
    needed = set(targets) - known
    for n in range(len(kernel.nodes) - 1, -1, -1):
        if n in needed:
            needed.update(set(operands(kernel.nodes[n])) - known)
    return sorted(needed)


def restricted(kernel: Kernel, stores: Sequence[int]) -> Kernel:
    """Return the kernel with some stores and what they need; inputs stay."""
    kept = [kernel.stores[s] for s in stores]
    if [*stores] == [*range(len(kernel.stores))] and len(closure(kernel, [store.value for store in kept])) == len(kernel.nodes):
        return kernel
    nodes = Nodes(kernel)
    nodes.copy([store.value for store in kept])
    return replace(kernel, nodes=tuple(nodes.nodes), stores=tuple([replace(store, value=nodes.new[store.value]) for store in kept]))


def of_nothing(kernel: Kernel) -> Kernel:
    """Return a kernel without axes of size 0; reductions over them are identities."""
    empty = 0 in kernel.sizes[kernel.parallel :]

    def known(node: Node) -> Node:
        if not (empty and isinstance(node, Reduce)):
            return node
        return Constant.of(0 if node.is_index else node.reduction.start(node.dtype), node.dtype)

    return replace(kernel, sizes=tuple([n or 1 for n in kernel.sizes]), nodes=tuple(map(known, kernel.nodes)))
