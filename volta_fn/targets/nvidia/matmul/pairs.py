"""Pairs of products: gates and what they multiply.

Both are products of the same left operand, whose rows they read once, and the epilogue of one reads the results of the other, which need
not be stored then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import DefUse, FusedProgram, Kernel, KernelCall, Load, Node, ProgramNode, renumbered
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.jaxpr import Var
from volta_fn.targets.nvidia import matmul


def join_products(program: FusedProgram, device: TargetCapabilities) -> FusedProgram:
    """Join products with those whose results their epilogues read.

    Both have the same left operand.
    """
    index = DefUse(program.nodes, program.roots)
    outputs = {program.root(v) for v in program.outputs if isinstance(v, Var)}
    nodes: list[ProgramNode | None] = [*program.nodes]
    for number, node in enumerate(program.nodes):
        if not isinstance(node, KernelCall) or not matmul.computes_product(node.kernel, device):
            continue
        for before in sorted({index.position(v) for v in program.reads(node)} - {-1}):
            first = nodes[before]
            if not isinstance(first, KernelCall) or first is not program.nodes[before]:
                continue
            readers = {v: {n for n in index.consumers.get(v, []) if n != number} for v in first.results}
            if any(n < number for others in readers.values() for n in others):
                continue  # they would have to wait
            joined = _joined(first, node, {v for v in first.results if v in outputs or readers[v]}, program.root)
            if joined is None or len(joined.operands) + len(joined.results) > device.kernel_buffers:
                continue
            if matmul.computes_product(first.kernel, device) and matmul.computes_product(joined.kernel, device):
                nodes[before], nodes[number] = None, joined
                break
    return program._replace(nodes=tuple([node for node in nodes if node is not None]))


def _joined(first: KernelCall, second: KernelCall, stored: Collection[Var], root: Callable[[Var], Var]) -> KernelCall | None:
    """Return a kernel that computes what two do.

    None if they have other axes, or the second reads results of the first elsewhere than where it stores its own. The kernel stores the
    results of the first that are in `stored`.
    """
    a, b = first.kernel, second.kernel
    if (a.sizes, a.parallel) != (b.sizes, b.parallel):
        return None
    read = [root(v) for v in second.operands]
    variables = list(dict.fromkeys([*[root(v) for v in first.operands], *[v for v in read if v not in first.results]]))
    inputs = {n: variables.index(root(v)) for n, v in enumerate(first.operands)}
    nodes: list[Node] = [renumbered(node, {n: n for n in range(len(a.nodes))}, inputs) for node in a.nodes]
    stores = dict(zip(first.results, a.stores, strict=True))
    inputs = {n: variables.index(v) for n, v in enumerate(read) if v not in stores}
    new: dict[int, int] = {}
    for n, node in enumerate(b.nodes):
        if isinstance(node, Load) and node.input not in inputs:
            store = stores[read[node.input]]
            if node.mask or row_major(node.index, node.shape) != row_major(store.index, store.shape):
                return None
            new[n] = store.value
        else:
            new[n] = len(nodes)
            nodes.append(renumbered(node, new, inputs))
    results = [(replace(store, value=new[store.value]), v) for store, v in zip(b.stores, second.results, strict=True)]
    results += [(store, v) for v, store in stores.items() if v in stored]
    buffers = dict(zip([*[root(v) for v in first.operands], *read], (*a.inputs, *b.inputs), strict=True))
    kernel = Kernel(a.sizes, a.parallel, tuple([buffers[v] for v in variables]), tuple(nodes), tuple([store for store, _ in results]))
    return KernelCall(kernel, tuple(variables), tuple([v for _, v in results]))
