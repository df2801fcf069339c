"""An elementwise kernel, and one that goes over rows of what it makes, as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from volta_fn.compiler.fusion.emit_kernels import Fused
from volta_fn.compiler.fusion.split_k import renumbered
from volta_fn.compiler.ir.axes import rewritten, simplified
from volta_fn.compiler.ir.index import Affine, along
from volta_fn.compiler.ir.kernel import Kernel, Load
from volta_fn.compiler.ir.views import row_major
from volta_fn.core.jaxpr import Var

#: The longest rows: over a longer one, a device may go several times, and would compute its elements as often.
_LONGEST = 2048


def joined(first: Fused, second: Fused, kept: Collection[Var], root: Callable[[Var], Var]) -> Fused | None:
    """The second kernel computing what it reads of the first, and storing what of that is kept; None if it cannot.

    `root` gives the variable whose memory a variable is.
    """
    read = [root(v) for v in second.operands]
    ways = [(rows, _axes(first, rows, read)) for rows in (simplified(second.kernel), second.kernel)]
    rows, axes = next((way for way in ways if way[1] is not None), ways[0])
    if axes is None:
        return None
    head = rewritten(first.kernel, rows.sizes, rows.outer, axes)
    variables = list(dict.fromkeys([*[root(v) for v in first.operands], *[v for v in read if v not in first.results]]))
    inputs = {n: variables.index(root(v)) for n, v in enumerate(first.operands)}
    nodes = [renumbered(node, {n: n for n in range(len(head.nodes))}, inputs) for node in head.nodes]
    made = {v: s.value for v, s in zip(first.results, head.stores, strict=True)}
    inputs = {n: variables.index(v) for n, v in enumerate(read) if v not in made}
    new: dict[int, int] = {}
    for n, node in enumerate(rows.nodes):
        if isinstance(node, Load) and node.input not in inputs:
            new[n] = made[read[node.input]]
        else:
            new[n] = len(nodes)
            nodes.append(renumbered(node, new, inputs))
    stores = [(replace(s, value=new[s.value]), v) for s, v in zip(rows.stores, second.results, strict=True)]
    stores += [(s, v) for s, v in zip(head.stores, first.results, strict=True) if v in kept]
    buffers = dict(zip([*[root(v) for v in first.operands], *read], (*head.inputs, *rows.inputs), strict=True))
    kernel = Kernel(rows.sizes, rows.outer, tuple([buffers[v] for v in variables]), tuple(nodes), tuple([s for s, _ in stores]))
    return Fused(kernel, tuple(variables), tuple([v for _, v in stores]))


def _axes(first: Fused, rows: Kernel, read: Sequence[Var]) -> dict[int, Affine] | None:
    """The first kernel's axes as those of the second, if this reads each element where it computes with that one; else None."""
    if len(rows.inner) != 1 or rows.sizes[-1] > _LONGEST:
        return None
    found: list[dict[int, Affine]] = []
    for load in [node for node in rows.nodes if isinstance(node, Load) and read[node.input] in first.results]:
        store = first.kernel.stores[first.results.index(read[load.input])]
        made, here = row_major(store.index, store.shape), row_major(load.index, load.shape)
        steps = {(step, rows.sizes[axis]): axis for axis, step in here.terms}
        ways = {axis: along(steps[way]) for axis, step in made.terms if (way := (step, first.kernel.sizes[axis])) in steps}
        whole = len(ways) == len(first.kernel.sizes) == len(rows.sizes)
        if (
            not whole
            or load.mask
            or made.offset != here.offset
            or (1, rows.sizes[-1]) not in steps
            or steps[1, rows.sizes[-1]] != rows.outer
        ):
            return None
        found.append(ways)
    return found[0] if found and all(ways == found[0] for ways in found) else None
