"""Kernels made of nodes of other kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Kernel, Load, Node, Reduce, affines, operands


class NodeBuilder:
    """The nodes of a kernel under construction, mostly another kernel's."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.nodes: list[Node] = []
        #: The numbers of nodes here, by their numbers in the other kernel.
        self.numbers: dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Add a node, and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def copy(self, targets: Iterable[int]) -> None:
        """Copy nodes and their operands, except those that have a counterpart here."""
        for n in closure(self.kernel, targets, self.numbers):
            self.numbers[n] = self.add(renumbered(self.kernel.nodes[n], self.numbers))


def closure(kernel: Kernel, targets: Iterable[int], excluded: Iterable[int] = ()) -> list[int]:
    """Return the nodes that some nodes depend on, in order, without excluded ones."""
    excluded = set(excluded)
    needed = set(targets) - excluded
    for n in range(len(kernel.nodes) - 1, -1, -1):
        if n in needed:
            needed.update(set(operands(kernel.nodes[n])) - excluded)
    return sorted(needed)


def restricted(kernel: Kernel, stores: Sequence[int]) -> Kernel:
    """Restrict a kernel to some stores and their dependencies; inputs stay."""
    selected = [kernel.stores[s] for s in stores]
    if [*stores] == [*range(len(kernel.stores))] and len(closure(kernel, [store.value for store in selected])) == len(kernel.nodes):
        return kernel
    nodes = NodeBuilder(kernel)
    nodes.copy([store.value for store in selected])
    return replace(kernel, nodes=tuple(nodes.nodes), stores=tuple([replace(store, value=nodes.numbers[store.value]) for store in selected]))


def _loaded_inputs(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the numbers of the inputs that nodes load, in order."""
    return tuple(sorted({node.input for node in nodes if isinstance(node, Load)}))


def without_unused_inputs(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """Drop the inputs that no node loads; return the numbers of the others, too."""
    inputs = _loaded_inputs(kernel.nodes)
    unchanged, new_inputs = {n: n for n in range(len(kernel.nodes))}, {i: k for k, i in enumerate(inputs)}
    nodes = tuple([renumbered(node, unchanged, new_inputs) for node in kernel.nodes])
    return replace(kernel, inputs=tuple([kernel.inputs[i] for i in inputs]), nodes=nodes), inputs


def without_empty_axes(kernel: Kernel) -> Kernel:
    """Return a kernel without axes of size 0; reductions over them are identities."""
    empty = 0 in kernel.sizes[kernel.parallel :]

    def without_empty_reduction(node: Node) -> Node:
        if not (empty and isinstance(node, Reduce)):
            return node
        return Constant.of(0 if node.is_index else node.reduction.start(node.dtype), node.dtype)

    return replace(kernel, sizes=tuple([n or 1 for n in kernel.sizes]), nodes=tuple(map(without_empty_reduction, kernel.nodes)))


def renumbered(node: Node, nodes: Mapping[int, int], inputs: Mapping[int, int] | None = None) -> Node:
    """Return a kernel's node with new numbers for its operands, and for its input."""
    if isinstance(node, Load):
        return node if inputs is None else replace(node, input=inputs[node.input])
    if isinstance(node, Apply):
        return replace(node, operands=tuple([nodes[n] for n in node.operands]))
    return replace(node, operand=nodes[node.operand]) if isinstance(node, Reduce) else node


def remainder(kernel: Kernel, computed: Mapping[int, Load]) -> tuple[Kernel, tuple[int, ...]] | None:
    """Return a kernel's remainder without some nodes, over its outer axes.

    A recogniser computes the nodes `computed` itself, such as the sums of a matrix product, and generates all other code from the
    remainder, which has every store of the kernel. There loads replace those nodes; their inputs come first, and the numbers of the
    kernel's inputs that follow are returned, too. None if a store, or a node that a store needs, depends on inner axes or is another
    reduction.
    """
    needed = closure(kernel, [store.value for store in kernel.stores], computed)
    nodes = {n: computed.get(n, kernel.nodes[n]) for n in sorted({*needed, *computed})}
    indices = [a for node in nodes.values() for a in affines(node)] + [a for store in kernel.stores for a in store.index]
    if any(isinstance(node, Reduce) for node in nodes.values()) or any(axis >= kernel.parallel for a in indices for axis in a.axes):
        return None
    inputs = _loaded_inputs([kernel.nodes[n] for n in needed])
    new = {n: k for k, n in enumerate(nodes)}
    new_inputs = {i: len(computed) + k for k, i in enumerate(inputs)}
    buffers = tuple([Buffer(math.prod(load.shape), load.dtype) for load in sorted(computed.values(), key=lambda load: load.input)])
    return (
        Kernel(
            kernel.sizes[: kernel.parallel],
            kernel.parallel,
            (*buffers, *[kernel.inputs[i] for i in inputs]),
            tuple([node if n in computed else renumbered(node, new, new_inputs) for n, node in nodes.items()]),
            tuple([replace(store, value=new[store.value]) for store in kernel.stores]),
        ),
        inputs,
    )
