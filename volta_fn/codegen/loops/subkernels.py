"""Kernels made of parts of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Node, Reduce, operands


class Nodes:
    """The nodes of a kernel in the making, most of them those of another kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.nodes: list[Node] = []
        #: What nodes of the other kernel are here.
        self.new: dict[int, int] = {}

    def add(self, node: Node) -> int:
        """A node more. Returns its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def copy(self, targets: Iterable[int]) -> None:
        """Copy nodes, and what they read, unless that is here already, as itself or as something else."""
        for n in closure(self.kernel, targets, self.new):
            node = self.kernel.nodes[n]
            if isinstance(node, Apply):
                node = replace(node, operands=tuple([self.new[i] for i in node.operands]))
            elif isinstance(node, Reduce):
                node = replace(node, operand=self.new[node.operand])
            self.new[n] = self.add(node)


def closure(kernel: Kernel, targets: Iterable[int], known: Iterable[int] = ()) -> list[int]:
    """The nodes that are read on the way to some nodes, in order, down to what is known."""
    known = set(known)
    needed = set(targets) - known
    for n in range(len(kernel.nodes) - 1, -1, -1):
        if n in needed:
            needed.update(set(operands(kernel.nodes[n])) - known)
    return sorted(needed)


def restricted(kernel: Kernel, stores: Sequence[int]) -> Kernel:
    """The kernel with some of its stores, and the nodes that they need. The inputs are the same."""
    kept = [kernel.stores[s] for s in stores]
    if [*stores] == [*range(len(kernel.stores))] and len(closure(kernel, [store.value for store in kept])) == len(kernel.nodes):
        return kernel
    nodes = Nodes(kernel)
    nodes.copy([store.value for store in kept])
    return replace(kernel, nodes=tuple(nodes.nodes), stores=tuple([replace(store, value=nodes.new[store.value]) for store in kept]))


def of_nothing(kernel: Kernel) -> Kernel:
    """A kernel with axes without turns as one without them: what is reduced over no elements is what changes nothing."""
    empty = 0 in kernel.sizes[kernel.parallel :]

    def known(node: Node) -> Node:
        if not (empty and isinstance(node, Reduce)):
            return node
        return Constant.of(0 if node.is_index else node.reduction.start(node.dtype), node.dtype)

    return replace(kernel, sizes=tuple([n or 1 for n in kernel.sizes]), nodes=tuple(map(known, kernel.nodes)))
