"""Values that are several outputs: stored once for each, rather than copied."""

from __future__ import annotations

from dataclasses import replace

from volta_fn.compiler.ir.nodes import FusedProgram, KernelCall, Node
from volta_fn.core.jaxpr import Atom, Var


def duplicate_outputs(found: FusedProgram, most: int) -> FusedProgram:
    """Store an output that aliases another separately, in the kernel that computes it.

    This concerns programs in control flow, whose outputs are stored separately. No kernel gets more than `most` buffers.
    """
    if not found.nested:
        return found
    producers = {v: number for number, node in enumerate(found.nodes) if isinstance(node, KernelCall) for v in node.results}
    nodes: list[Node] = [*found.nodes]
    outputs, seen, roots = list[Atom](), set[Var](), dict(found.roots)
    for out in found.outputs:
        root = found.root(out) if isinstance(out, Var) else None
        number = producers.get(root) if root in seen else None
        node = nodes[number] if number is not None else None
        if root is not None and number is not None and isinstance(node, KernelCall) and len(node.operands) + len(node.results) < most:
            stored, out = Var(root.aval), Var(out.aval)
            roots[out] = stored  # of another shape, if the output is a reshape
            kernel = replace(node.kernel, stores=(*node.kernel.stores, node.kernel.stores[node.results.index(root)]))
            nodes[number] = node._replace(kernel=kernel, results=(*node.results, stored))
        elif root is not None:
            seen.add(root)
        outputs.append(out)
    return found._replace(closed=found.closed.replace(outvars=outputs), nodes=tuple(nodes), roots=roots)
