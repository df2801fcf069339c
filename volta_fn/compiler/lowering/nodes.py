"""Passes over nodes that all targets need, and single equations as kernels."""

from __future__ import annotations

from volta_fn.compiler.ir.index import NotAffine
from volta_fn.compiler.ir.nodes import FusedProgram, KernelCall, Node
from volta_fn.compiler.ir.views import is_alias
from volta_fn.compiler.lowering.equations import lower_equation
from volta_fn.core.jaxpr import Equation, Var


def split_concatenations(found: FusedProgram, most: int) -> FusedProgram:
    """Split concatenations of more arrays than a kernel can bind."""
    return found._replace(nodes=tuple([new for node in found.nodes for new in _in_groups(node, most)]))


def _in_groups(node: Node, most: int) -> list[Node]:
    if isinstance(node, KernelCall) or node.primitive.name != "concatenate" or len(node.invars) < most:
        return [node]
    groups = [node.invars[i : i + most - 1] for i in range(0, len(node.invars), most - 1)]
    joined = [Var(node.primitive.abstract(*[v.aval for v in group], **node.params)) for group in groups]
    first: list[Node] = [node.replace(invars=group, outvars=[var]) for group, var in zip(groups, joined, strict=True)]
    return [*first, *_in_groups(node.replace(invars=[*joined]), most)]


def drop_aliases(found: FusedProgram) -> FusedProgram:
    """Drop reshapes of values in memory: their results share their operands' memory."""
    roots: dict[Var, Var] = dict(found.roots)
    nodes: list[Node] = []
    for node in found.nodes:
        if isinstance(node, Equation) and is_alias(node) and isinstance(node.invars[0], Var):
            operand = node.invars[0]
            roots[node.outvars[0]] = roots.get(operand, operand)
        else:
            nodes.append(node)
    return found._replace(nodes=tuple(nodes), roots=roots)


def as_kernel(eqn: Equation) -> KernelCall | None:
    """Return one equation as a kernel; None if its indices are not affine."""
    try:
        kernel, operands = lower_equation(eqn)
    except NotAffine:
        return None
    return KernelCall(kernel, operands, tuple(eqn.outvars))
