"""What an item of a program has to do at least: operations and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.ir.nodes import KernelCall
from volta_fn.compiler.program import Item
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation, Var
from volta_fn.jit.cost import operations_of


def describe(item: Item, equations: Sequence[Equation]) -> str:
    """Name an item: its primitive, or the most telling primitives of a kernel."""
    if not isinstance(item.node, KernelCall):
        return item.node.primitive.name
    names = dict.fromkeys([eqn.primitive.name for eqn in sorted(equations, key=lambda eqn: -operations_of(eqn))])
    moving = [name for name in names if name not in _VIEWS]
    chosen = (moving or [*names])[:3]
    return " + ".join(chosen) + (" + …" if len(moving) > len(chosen) else "") if chosen else "kernel"


#: Primitives that only say which element is meant.
_VIEWS = frozenset({"reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "rev", "convert_element_type", "name"})


def flops_of(equations: Sequence[Equation]) -> int:
    """Count the operations of equations: of products, elements and reductions."""
    return sum(map(operations_of, equations))


def bytes_of(item: Item) -> int:
    """Return the bytes of an item's operands and results, each array once."""
    arrays = dict.fromkeys([v for v in (*item.operands, *item.results) if isinstance(v, Var)])
    return sum(v.aval.nbytes for v in arrays)


def shapes_of(item: Item) -> str:
    """Return the types of an item's operands and results."""
    return f"{_types([v.aval for v in item.operands])} → {_types([v.aval for v in item.results])}"


def _types(avals: Sequence[ShapedArray]) -> str:
    shown = [str(aval) for aval in avals[:4]]
    return " ".join([*shown, f"… ({len(avals)})"] if len(avals) > 4 else shown) or "()"
