"""Kernels as text that can be read back, for the corpus.

A line is an axis list, a node or a store:

    rows i<3> j<4> | k<5>
    v0 = float32 x0[3,5] at (i, -k + 4)
    v1 = float32 x1[4] at (j - 1) if 1 <= j < 4 else 0.0
    v2 = float32 mul v0 v1
    v3 = float32 reduce_sum v2
    v4 = int32 position 2*i + j
    v5 = bool inside 0 <= i - j < 3
    v6 = float32 constant 1.5
    y0[3,4] at (i, j) = v3

Constants are `repr` of Python's numbers; parameters of operations are ``name=value`` in brackets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import Affine, Index, Range, combine
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store, format_affine

_AXES = "ijklmnpqrstuvw"
_LOAD = re.compile(r"x(\d+)\[([\d,]*)\] at \(([^)]*)\)(?: if (.*) else (.*))?$")
_STORE = re.compile(r"y\d+\[([\d,]*)\] at \(([^)]*)\) = v(\d+)$")
_RANGE = re.compile(r"(-?\d+) <= (.*) < (-?\d+)$")


def written(kernel: Kernel) -> str:
    """Return the text of a kernel."""
    axes = [f"{_AXES[a]}<{n}>" for a, n in enumerate(kernel.sizes)]
    lines = [f"rows {' '.join(axes[: kernel.parallel])} | {' '.join(axes[kernel.parallel :])}"]
    lines += [f"v{n} = {node.dtype.name} {_node(node)}" for n, node in enumerate(kernel.nodes)]
    lines += [f"y{s}[{_sizes(store.shape)}] at ({_index(store.index)}) = v{store.value}" for s, store in enumerate(kernel.stores)]
    return "\n".join(line.rstrip() for line in lines)


def parsed(text: str) -> Kernel:
    """Return the kernel of a text; lines that begin with # are comments."""
    lines = [line.strip() for line in text.strip().split("\n") if not line.startswith("#")]
    outer, inner = lines[0].removeprefix("rows").split("|")
    sizes = [tuple([int(size) for size in re.findall(r"<(\d+)>", part)]) for part in (outer, inner)]
    nodes: list[Node] = []
    inputs: dict[int, Buffer] = {}
    stores: list[Store] = []
    for line in lines[1:]:
        if (match := _STORE.match(line)) is not None:
            stores.append(Store(_shape(match[1]), _indices(match[2]), int(match[3])))
            continue
        dtype_name, _, rest = line.partition(" = ")[2].partition(" ")
        nodes.append(_parsed_node(dtypes.as_dtype(dtype_name), rest))
        if isinstance(node := nodes[-1], Load):
            inputs[node.input] = Buffer(math.prod(node.shape), node.dtype)
    return Kernel((*sizes[0], *sizes[1]), len(sizes[0]), tuple([inputs[n] for n in sorted(inputs)]), tuple(nodes), tuple(stores))


def _node(node: Node) -> str:
    if isinstance(node, Load):
        mask = f" if {_ranges(node.mask)} else {_number(node.fill)}" if node.mask else ""
        return f"x{node.input}[{_sizes(node.shape)}] at ({_index(node.index)}){mask}"
    if isinstance(node, Position):
        return f"position {format_affine(node.value)}"
    if isinstance(node, Inside):
        return f"inside {_ranges(node.ranges)}"
    if isinstance(node, Constant):
        return f"constant {_number(node)}"
    if isinstance(node, Reduce):
        return f"{node.op} v{node.operand}"
    params = [f"{name}={value.name if isinstance(value, np.dtype) else repr(value)}" for name, value in node.params]
    return f"{node.op}{'[' + ', '.join(params) + ']' if params else ''} {' '.join(f'v{i}' for i in node.operands)}"


def _sizes(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _index(index: Index) -> str:
    return ", ".join(map(format_affine, index))


def _ranges(ranges: Sequence[Range]) -> str:
    return " and ".join(f"{r.low} <= {format_affine(r.value)} < {r.high}" for r in ranges)


def _number(constant: Constant) -> str:
    value = constant.value
    return repr(value.astype(np.float64).item() if constant.dtype in dtypes.FLOATS else value.item())


def _parsed_node(dtype: np.dtype, text: str) -> Node:
    if (match := _LOAD.match(text)) is not None:
        mask, fill = (_parsed_ranges(match[4]), match[5]) if match[4] else ((), "0")
        return Load(dtype, int(match[1]), _shape(match[2]), _indices(match[3]), mask, _constant(dtype, fill))
    name, _, rest = text.partition(" ")
    if name == "position":
        return Position(dtype, _affine(rest))
    if name == "inside":
        return Inside(_parsed_ranges(rest))
    if name == "constant":
        return _constant(dtype, rest)
    if name.startswith(("reduce_", "arg")):
        return Reduce(dtype, name, int(rest[1:]))
    op, _, params = text.partition("]")[0].partition("[")
    operands = tuple([int(n) for n in re.findall(r"\bv(\d+)", text.rpartition("]")[2])])
    return Apply(dtype, op.split(" ")[0], operands, tuple([_parameter(p) for p in params.split(", ") if p]))


def _parameter(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, dtypes.as_dtype(value) if name == "new_dtype" else eval(value, {})


def _constant(dtype: np.dtype, text: str) -> Constant:
    return Constant.of(eval(text, {"nan": math.nan, "inf": math.inf, "nanj": complex(0, math.nan), "infj": complex(0, math.inf)}), dtype)


def _shape(text: str) -> tuple[int, ...]:
    return tuple([int(size) for size in text.split(",") if size])


def _indices(text: str) -> Index:
    return tuple([_affine(part) for part in text.split(", ") if part])


def _parsed_ranges(text: str) -> tuple[Range, ...]:
    matches = [_RANGE.match(part) for part in text.split(" and ")]
    return tuple([Range(_affine(match[2]), int(match[1]), int(match[3])) for match in matches if match is not None])


def _affine(text: str) -> Affine:
    terms = []
    for sign, factor, axis, offset in re.findall(r"([+-]?) ?(?:(?:(\d+)\*)?([a-w])|(\d+))", text):
        number = -1 if sign == "-" else 1
        terms.append((number, Affine(((_AXES.index(axis), int(factor or 1)),), 0) if axis else Affine((), int(offset))))
    return combine(terms)
