"""Kernels as readable text.

Rows are named by the letters i, j, …; each pass over a row is a loop in it; ``v <- op:dtype w`` combines w over the row into v, which
the lines after that pass may use. Inputs are x0, x1, …, outputs y0, y1, …, each with the shape under which it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn import dtypes
from volta_fn.compiler.ir.index import Affine, Index, Range
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, Load, Node, Position, Reduce, levels, stages

_AXES = "ijklmnpqrstuvw"


def _axis(axis: int) -> str:
    return _AXES[axis] if axis < len(_AXES) else f"i{axis}"


def format_affine(affine: Affine) -> str:
    """Format an affine number, as in ``2*i - j + 3``."""
    terms: list[str] = []
    for axis, c in affine.terms:
        name = _axis(axis) if abs(c) == 1 else f"{abs(c)}*{_axis(axis)}"
        terms.append(("-" if c < 0 else "") + name if not terms else (" - " if c < 0 else " + ") + name)
    if affine.offset or not terms:
        sign = " - " if affine.offset < 0 else " + "
        terms.append(sign + str(abs(affine.offset)) if terms else str(affine.offset))
    return "".join(terms)


def _index(index: Index) -> str:
    return ", ".join(map(format_affine, index))


def _ranges(ranges: Sequence[Range]) -> str:
    return " and ".join(f"{r.low} <= {format_affine(r.value)} < {r.high}" for r in ranges)


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _constant(constant: Constant) -> str:
    value = constant.value.item()
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else str(value)


def format_kernel(kernel: Kernel) -> str:
    """Format a kernel as loops over rows and passes, a line per node."""
    names = _names(kernel)
    per_element, stage = levels(kernel), stages(kernel)
    rows = " ".join(f"{_axis(a)}<{kernel.sizes[a]}>" for a in range(kernel.parallel))
    row = " ".join(f"{_axis(a)}<{kernel.sizes[a]}>" for a in kernel.reduction_axes)
    text_lines = [f"for each row {rows}".rstrip() + ":"]
    for passes in range(max(stage, default=0) + 1):
        numbers = [n for n, s in enumerate(stage) if s == passes]
        text_lines += _section(kernel, names, [n for n in numbers if not per_element[n]], numbers, inner=False)
        body = _section(kernel, names, [n for n in numbers if per_element[n]], numbers, inner=True)
        ready = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce) and stage[n] == passes + 1]
        body += [f"    {names[n]} {_node(kernel.nodes[n], names)}" for n in ready]
        if body:
            text_lines += [f"  for each {row}:" if row else "  once:", *body]
    return "\n".join(text_lines)


def _names(kernel: Kernel) -> list[str]:
    """Name nodes v0, v1, …; constants name themselves."""
    names: list[str] = []
    count = 0
    for node in kernel.nodes:
        if isinstance(node, Constant):
            names.append(_constant(node))
        else:
            names.append(f"v{count}")
            count += 1
    return names


def _section(kernel: Kernel, names: Sequence[str], nodes: Sequence[int], stored: Sequence[int], inner: bool) -> list[str]:
    """Format nodes, and the stores at the same level of the nodes in `stored`."""
    pad = "    " if inner else "  "
    text_lines = []
    for n in nodes:
        node = kernel.nodes[n]
        if not isinstance(node, Constant | Reduce):
            text_lines.append(f"{pad}{names[n]}:{dtypes.short_name(node.dtype)} = {_node(node, names)}")
    for out, store in enumerate(kernel.stores):
        if store.value in stored and any(axis >= kernel.parallel for a in store.index for axis in a.axes) == inner:
            text_lines.append(f"{pad}y{out}{_shape(store.shape)} at ({_index(store.index)}) = {names[store.value]}")
    return text_lines


def _node(node: Node, names: Sequence[str]) -> str:
    if isinstance(node, Load):
        mask = f" if {_ranges(node.mask)} else {_constant(node.fill)}" if node.mask else ""
        return f"x{node.input}{_shape(node.shape)} at ({_index(node.index)}){mask}"
    if isinstance(node, Position):
        return format_affine(node.value)
    if isinstance(node, Inside):
        return _ranges(node.ranges)
    if isinstance(node, Reduce):
        precision = f" in {node.precision}" if node.precision else ""
        return f"<- {node.op}:{dtypes.short_name(node.dtype)} {names[node.operand]}{precision}"
    if isinstance(node, Apply):
        params = "[" + ", ".join(f"{k}={v}" for k, v in node.params if k != "weak_type") + "]" if node.params else ""
        return f"{node.op}{params} {' '.join(names[i] for i in node.operands)}".rstrip()
    return _constant(node)
