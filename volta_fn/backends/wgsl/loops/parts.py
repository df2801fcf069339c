"""Parts of kernels that are kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from volta_fn.backends.wgsl.scalars import identity
from volta_fn.compiler.kernels.ir import Apply, Constant, Kernel, Node, Reduce, operands


def restricted(kernel: Kernel, stores: Sequence[int]) -> Kernel:
    """The kernel with some of its stores, and the nodes that they need. The inputs are the same."""
    needed = {kernel.stores[s].value for s in stores}
    for n in range(len(kernel.nodes) - 1, -1, -1):
        if n in needed:
            needed.update(operands(kernel.nodes[n]))
    new: dict[int, int] = {}
    nodes: list[Node] = []
    for n in sorted(needed):
        node = kernel.nodes[n]
        if isinstance(node, Apply):
            node = replace(node, operands=tuple([new[i] for i in node.operands]))
        elif isinstance(node, Reduce):
            node = replace(node, operand=new[node.operand])
        new[n] = len(nodes)
        nodes.append(node)
    kept = tuple([replace(kernel.stores[s], value=new[kernel.stores[s].value]) for s in stores])
    return replace(kernel, nodes=tuple(nodes), stores=kept)


def of_nothing(kernel: Kernel) -> Kernel:
    """A kernel with axes without turns as one without them: what is reduced over no elements is what changes nothing."""
    empty = 0 in kernel.sizes[kernel.outer :]

    def known(node: Node) -> Node:
        if not (empty and isinstance(node, Reduce)):
            return node
        return Constant.of(0 if node.op.startswith("arg") else identity(node.op, node.dtype), node.dtype)

    return replace(kernel, sizes=tuple([n or 1 for n in kernel.sizes]), nodes=tuple(map(known, kernel.nodes)))
