"""A product as a stack of products of parts of its sum, and the elementwise kernel that adds these up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from volta_fn.compiler.fusion.emit_kernels import Fused
from volta_fn.compiler.ir.axes import rewritten
from volta_fn.compiler.ir.contraction import Contraction, contraction_of
from volta_fn.compiler.ir.index import ZERO, along, combine
from volta_fn.compiler.ir.kernel import Apply, Buffer, Kernel, Load, Node, Reduce, Store, operands
from volta_fn.compiler.ir.views import row_major
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Var


class Stacked(NamedTuple):
    """The products, which make an array (parts, rows, columns), and what makes the results of it that one product would have made."""

    products: Fused
    adding: Fused


def stacked(item: Fused, parts: int) -> Stacked | None:
    """A product in so many equal parts; None if it is none, or if there are no such parts."""
    product = contraction_of(item.kernel)
    if product is None or parts < 2 or len(product.summed) != 1 or product.kernel.sizes[-1] % parts:
        return None
    kernel, inputs = _products(product, parts)
    sums = Var(ShapedArray(kernel.stores[0].shape, kernel.outputs[0].dtype))
    products = Fused(kernel, tuple([item.operands[n] for n in inputs]), (sums,))
    kernel, inputs = _adding(product, parts)
    return Stacked(products, Fused(kernel, (sums, *[item.operands[n] for n in inputs]), item.results))


def _products(product: Contraction, parts: int) -> tuple[Kernel, tuple[int, ...]]:
    """The stack of products, and which of the product's inputs are its."""
    kernel = product.kernel
    terms, last = kernel.sizes[-1] // parts, kernel.outer
    axes = {a: along(a + 1) for a in range(last)} | {last: combine([(terms, along(0)), (1, along(last + 1))])}
    wide = rewritten(kernel, (parts, *kernel.sizes[:-1], terms), last + 1, axes)
    lines = [(*product.batch, *product.rows), product.columns]
    sizes = [tuple([kernel.sizes[a] for a in line]) for line in lines]
    places = [row_major(tuple([along(a + 1) for a in line]), size) for line, size in zip(lines, sizes, strict=True)]
    shape = (parts, *[product.size(line) for line in lines])
    return _of_store(replace(wide, stores=(Store(shape, (along(0), *places), product.total),)))


def _of_store(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """A kernel of one store without the nodes and inputs that this does not need, and the numbers of the inputs that are left."""
    (store,) = kernel.stores
    wanted, waiting = {store.value}, [store.value]
    while waiting:
        new = set(operands(kernel.nodes[waiting.pop()])) - wanted
        wanted |= new
        waiting += new
    order = sorted(wanted)
    inputs = tuple(sorted({node.input for n in order if isinstance(node := kernel.nodes[n], Load)}))
    numbers = {n: k for k, n in enumerate(order)}
    nodes = [renumbered(kernel.nodes[n], numbers, {i: k for k, i in enumerate(inputs)}) for n in order]
    buffers = tuple([kernel.inputs[i] for i in inputs])
    return replace(kernel, inputs=buffers, nodes=tuple(nodes), stores=(replace(store, value=numbers[store.value]),)), inputs


def renumbered(node: Node, nodes: Mapping[int, int], inputs: Mapping[int, int]) -> Node:
    """A node with the numbers of the nodes, or of the input, that it reads exchanged."""
    if isinstance(node, Load):
        return replace(node, input=inputs[node.input])
    if isinstance(node, Apply):
        return replace(node, operands=tuple([nodes[n] for n in node.operands]))
    return replace(node, operand=nodes[node.operand]) if isinstance(node, Reduce) else node


def _add_parts(nodes: list[Node], load: Load, parts: int) -> None:
    """Append what loads all parts of a sum and adds them up, one after the other."""
    for part in range(parts):
        nodes.append(replace(load, shape=(parts, *load.shape), index=(ZERO.plus(part), *load.index)))
        if part:
            nodes.append(Apply(load.dtype, "add", (len(nodes) - 2, len(nodes) - 1)))


def _adding(product: Contraction, parts: int) -> tuple[Kernel, tuple[int, ...]]:
    """What adds the parts up, and does with the sums what the product did; and which of the product's inputs are its from the second on."""
    kernel, inputs = product.epilogue()
    nodes: list[Node] = []
    new: dict[int, int] = {}
    for n, node in enumerate(kernel.nodes):
        if isinstance(node, Load) and node.input == 0:
            _add_parts(nodes, node, parts)
        else:
            nodes.append(renumbered(node, new, {i: i for i in range(len(kernel.inputs))}))
        new[n] = len(nodes) - 1
    sums = kernel.inputs[0]
    stores = tuple([replace(s, value=new[s.value]) for s in kernel.stores])
    return replace(kernel, inputs=(Buffer(parts * sums.size, sums.dtype), *kernel.inputs[1:]), nodes=tuple(nodes), stores=stores), inputs
