"""Prologue fusion: an elementwise kernel joins the row kernel that consumes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from volta_fn.compiler.ir.axes import rewritten, simplified
from volta_fn.compiler.ir.index import Affine, along
from volta_fn.compiler.ir.kernel import Apply, Kernel, Load, Node, Reduce
from volta_fn.compiler.ir.nodes import KernelCall
from volta_fn.compiler.ir.views import row_major
from volta_fn.core.jaxpr import Var

#: The longest rows: a device may make several passes over a longer one, and would compute the prologue in each.
_LONGEST = 2048


def fuse_prologue(first: KernelCall, second: KernelCall, kept: Collection[Var], root: Callable[[Var], Var]) -> KernelCall | None:
    """Return the second kernel with the first as its prologue; None if impossible.

    The fused kernel also stores the first one's results in `kept`. `root` gives the variable whose memory a variable has.
    """
    read = [root(v) for v in second.operands]
    forms = [(rows, _axes(first, rows, read)) for rows in (simplified(second.kernel), second.kernel)]
    rows, axes = next((form for form in forms if form[1] is not None), forms[0])
    if axes is None:
        return None
    head = rewritten(first.kernel, rows.sizes, rows.parallel, axes)
    variables = list(dict.fromkeys([*[root(v) for v in first.operands], *[v for v in read if v not in first.results]]))
    inputs = {n: variables.index(root(v)) for n, v in enumerate(first.operands)}
    nodes = [renumbered(node, {n: n for n in range(len(head.nodes))}, inputs) for node in head.nodes]
    computed = {v: s.value for v, s in zip(first.results, head.stores, strict=True)}
    inputs = {n: variables.index(v) for n, v in enumerate(read) if v not in computed}
    new: dict[int, int] = {}
    for n, node in enumerate(rows.nodes):
        if isinstance(node, Load) and node.input not in inputs:
            new[n] = computed[read[node.input]]
        else:
            new[n] = len(nodes)
            nodes.append(renumbered(node, new, inputs))
    stores = [(replace(s, value=new[s.value]), v) for s, v in zip(rows.stores, second.results, strict=True)]
    stores += [(s, v) for s, v in zip(head.stores, first.results, strict=True) if v in kept]
    buffers = dict(zip([*[root(v) for v in first.operands], *read], (*head.inputs, *rows.inputs), strict=True))
    kernel = Kernel(rows.sizes, rows.parallel, tuple([buffers[v] for v in variables]), tuple(nodes), tuple([s for s, _ in stores]))
    return KernelCall(kernel, tuple(variables), tuple([v for _, v in stores]))


def renumbered(node: Node, nodes: Mapping[int, int], inputs: Mapping[int, int]) -> Node:
    """Return a kernel's node with new numbers for its operands or input."""
    if isinstance(node, Load):
        return replace(node, input=inputs[node.input])
    if isinstance(node, Apply):
        return replace(node, operands=tuple([nodes[n] for n in node.operands]))
    return replace(node, operand=nodes[node.operand]) if isinstance(node, Reduce) else node


def _axes(first: KernelCall, rows: Kernel, read: Sequence[Var]) -> dict[int, Affine] | None:
    """Return the first kernel's axes as those of the second.

    None unless the second reads each element where it is computed.
    """
    if len(rows.reduction_axes) != 1 or rows.sizes[-1] > _LONGEST:
        return None
    found: list[dict[int, Affine]] = []
    for load in [node for node in rows.nodes if isinstance(node, Load) and read[node.input] in first.results]:
        store = first.kernel.stores[first.results.index(read[load.input])]
        stored, loaded = row_major(store.index, store.shape), row_major(load.index, load.shape)
        strides = {(stride, rows.sizes[axis]): axis for axis, stride in loaded.terms}
        axes = {axis: along(strides[key]) for axis, stride in stored.terms if (key := (stride, first.kernel.sizes[axis])) in strides}
        one_to_one = len(axes) == len(first.kernel.sizes) == len(rows.sizes) and not load.mask and stored.offset == loaded.offset
        if not one_to_one or strides.get((1, rows.sizes[-1])) != rows.parallel:
            return None
        found.append(axes)
    return found[0] if found and all(axes == found[0] for axes in found) else None
