"""One model for all sizes, from models for some.

A function with symbolic sizes is traced, and written as a graph, for several sizes of each symbolic axis. The graphs must have the same
nodes. Constants that differ are computed from the shapes of the model's inputs instead: numbers that are polynomials of the sizes, such as
those of a shape; numbers that are divided by a size, as those of a mean; and arrays whose elements depend linearly on their positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.dimension import Dimension
from volta_fn.errors import OnnxError
from volta_fn.export.symbolic import Generalizer
from volta_fn.onnx.tensors import library, number_of

#: Arrays of more elements are not taken apart to polynomials.
_MOST_POLYNOMIALS = 256


class WrittenGraph(NamedTuple):
    """A graph's nodes, constants by name, and the shapes of its inputs and outputs.

    Sizes in shapes are numbers; in a graph for all sizes they may be polynomials.
    """

    nodes: list[Any]
    constants: list[tuple[str, np.ndarray]]
    inputs: list[tuple[Any, ...]]
    outputs: list[tuple[Any, ...]]


def merge(
    graphs: Sequence[WrittenGraph], samples: Sequence[Mapping[str, int]], inputs: Sequence[tuple[str, Sequence[Any]]]
) -> WrittenGraph:
    """Return the graph that is each of `graphs` at its sample of sizes.

    `inputs` are the names and the symbolic shapes of the model's inputs. Raises `OnnxError` if there is no such graph.
    """
    return _Merger(samples, inputs).merged(graphs)


def _first_other(items: Sequence[Any]) -> int:
    """Return where the first item is that differs from the first of all, or 0."""
    return next((i for i, item in enumerate(items) if item != items[0]), 0)


class _Merger:
    """Merges graphs of several sizes, with nodes that compute what differs."""

    def __init__(self, samples: Sequence[Mapping[str, int]], inputs: Sequence[tuple[str, Sequence[Any]]]) -> None:
        self._samples, self._inputs = samples, inputs
        self._generalizer = Generalizer(samples)
        #: The nodes that compute sizes, and the constants that they read.
        self._nodes: list[Any] = []
        self._constants: list[tuple[str, np.ndarray]] = []
        self._names: dict[Any, str] = {}

    def merged(self, graphs: Sequence[WrittenGraph]) -> WrittenGraph:
        nodes = self._merge_nodes([graph.nodes for graph in graphs])
        constants = []
        for column in self._columns([graph.constants for graph in graphs], "constants"):
            name, values = column[0][0], [value for _, value in column]
            if all(v.dtype == values[0].dtype and v.shape == values[0].shape and v.tobytes() == values[0].tobytes() for v in values):
                constants.append((name, values[0]))
            else:
                self._emit("Identity", self._array(values), result=name)
        shapes = [
            [self._shape(column) for column in zip(*[getattr(g, part) for g in graphs], strict=True)] for part in ("inputs", "outputs")
        ]
        return WrittenGraph([*self._nodes, *nodes], [*self._constants, *constants], *shapes)

    def _columns(self, lists: Sequence[Sequence[Any]], what: str) -> list[tuple[Any, ...]]:
        counts = [len(items) for items in lists]
        if other := _first_other(counts):
            self._fail(f"it has {counts[0]} and {counts[other]} {what}", other)
        return list(zip(*lists, strict=True))

    def _fail(self, difference: str, other: int = -1) -> Any:
        """Raise `OnnxError` for a difference between the first sample and another one."""
        sample = self._samples[other]
        example = next((f", such as '{name} >= 2'" for name, size in sample.items() if size == 1), "")
        raise OnnxError(
            f"the model is not the same for all sizes: for {dict(self._samples[0])} and {dict(sample)} {difference}. "
            f"Save it for each size, or add constraints to the symbolic sizes{example}"
        )

    # Nodes, and graphs in them.

    def _merge_nodes(self, lists: Sequence[Sequence[Any]]) -> list[Any]:
        return [self._merge_node(column) for column in self._columns(lists, "nodes")]

    def _merge_node(self, nodes: Sequence[Any]) -> Any:
        first = nodes[0]
        texts = {node.SerializeToString(deterministic=True) for node in nodes}
        if len(texts) == 1:
            return first
        heads = [(node.op_type, tuple(node.input), tuple(node.output), tuple(a.name for a in node.attribute)) for node in nodes]
        if other := _first_other(heads):
            self._fail(f"it has the operators {first.op_type} and {nodes[other].op_type} at the same place", other)
        result = library().NodeProto()
        result.CopyFrom(first)
        for position, attribute in enumerate(result.attribute):
            column = [node.attribute[position] for node in nodes]
            if attribute.HasField("g"):
                self._merge_inner([a.g for a in column], attribute.g)
            elif any(a != column[0] for a in column):
                self._fail(f"the attribute {attribute.name} of {first.op_type} differs")
        return result

    def _merge_inner(self, graphs: Sequence[Any], result: Any) -> None:
        """Merge graphs that a node runs, into one of them."""
        nodes = self._merge_nodes([graph.node for graph in graphs])
        del result.node[:]
        result.node.extend(nodes)
        for position, kind in enumerate(result.input):
            shapes = [[d.dim_value for d in graph.input[position].type.tensor_type.shape.dim] for graph in graphs]
            for dim, size in zip(kind.type.tensor_type.shape.dim, self._shape(shapes), strict=True):
                if isinstance(size, Dimension):
                    dim.dim_param = repr(size)

    # Shapes.

    def _shape(self, shapes: Sequence[Sequence[int]]) -> tuple[Any, ...]:
        return tuple([self._dimension(sizes) for sizes in zip(*shapes, strict=True)])

    def _dimension(self, values: Sequence[int]) -> Any:
        """Return an int, or the polynomial of sizes with these values."""
        if len(set(values)) == 1:
            return int(values[0])
        polynomial = self._generalizer.polynomial([Fraction(int(v)) for v in values])
        return polynomial if polynomial is not None else self._fail(f"a size is {values[0]} and {values[-1]}, by no polynomial of degree 2")

    # Constants that depend on sizes, computed.

    def _emit(self, kind: str, *names: str, result: str | None = None, **attributes: Any) -> str:
        key = (kind, names, tuple(attributes.items()))
        if result is None:
            if key in self._names:
                return self._names[key]
            result = self._names[key] = f"size{len(self._names)}"
        self._nodes.append(library().helper.make_node(kind, list(names), [result], **attributes))
        return result

    def _constant(self, value: Any, dtype: Any = np.int64) -> str:
        array = np.asarray(value, dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"size{len(self._names)}"
            self._constants.append((self._names[key], array))
        return self._names[key]

    def _size(self, size: Any) -> str:
        """Return the name of a size, a vector of one int64."""
        if not isinstance(size, Dimension):
            return self._constant([size])
        common = int(np.lcm.reduce([c.denominator for c in size.terms.values()]))
        total = None
        for monomial, coefficient in size.terms.items():
            term = self._constant([int(coefficient * common)])
            for name, exponent in monomial:
                for _ in range(exponent):
                    term = self._emit("Mul", term, self._variable(name))
            total = term if total is None else self._emit("Add", total, term)
        return self._emit("Div", str(total), self._constant([common])) if common > 1 else str(total)

    def _variable(self, name: str) -> str:
        """Return the name of a variable, from the shape of an input."""
        for label, shape in self._inputs:
            for axis, size in enumerate(shape):
                terms = size.terms if isinstance(size, Dimension) else {}
                slope = terms.get(((name, 1),))
                if (
                    slope is not None
                    and set(terms) <= {(), ((name, 1),)}
                    and slope.denominator == 1 == terms.get((), Fraction(0)).denominator
                ):
                    extent = self._emit("Shape", label, start=axis, end=axis + 1)
                    moved = self._emit("Sub", extent, self._constant([int(terms[()])])) if () in terms else extent
                    return moved if slope == 1 else self._emit("Div", moved, self._constant([int(slope)]))
        raise OnnxError(f"the size {name} is not that of an axis of an input, such as {name} or 2*{name} + 1")

    def _array(self, values: Sequence[np.ndarray]) -> str:
        """Return the name of an array with these values at the samples."""
        dtype, ranks = values[0].dtype, {v.ndim for v in values}
        if len(ranks) > 1:
            self._fail("a constant differs in its number of axes")
        if len({v.shape for v in values}) == 1 and values[0].size <= _MOST_POLYNOMIALS:
            return self._elements(values)
        return self._affine(values, dtype)

    def _elements(self, values: Sequence[np.ndarray]) -> str:
        """Compute each element by itself."""
        dtype, shape = values[0].dtype, values[0].shape
        parts = []
        for column in zip(*[v.ravel() for v in values], strict=True):
            if dtype.kind in "iu":
                parts.append(self._size(self._dimension([int(x) for x in column])))
            else:
                parts.append(self._number(column, dtype))
        joined = parts[0] if len(parts) == 1 else self._emit("Concat", *parts, axis=0)
        if dtype.kind in "iu" and dtype != np.int64:
            joined = self._emit("Cast", joined, to=number_of(dtype))
        return joined if shape == (len(parts),) else self._emit("Reshape", joined, self._constant(list(shape)))

    def _number(self, values: Sequence[Any], dtype: np.dtype) -> str:
        """Return the name of a float times a size or divided by one, a vector of one."""
        if all(x == values[0] for x in values):
            return self._constant([values[0]], dtype)
        for form, operator in (("times", "Mul"), ("over", "Div")):
            product = self._generalizer.factor(values, form, dtype) if dtype.kind == "f" else None
            if product is not None:
                factor, size = product
                return self._emit(operator, self._constant([factor], dtype), self._emit("Cast", self._size(size), to=number_of(dtype)))
        return str(self._fail(f"a number is {values[0]} and {values[-1]}, which is neither a size nor a number divided by one"))

    def _affine(self, values: Sequence[np.ndarray], dtype: np.dtype) -> str:
        """Compute an array whose elements are linear in their positions."""
        shape = self._shape([v.shape for v in values])
        rows = [_coefficients(v) for v in values]
        if any(row is None for row in rows):
            self._fail(
                f"a constant has the shapes {values[0].shape} and {values[-1].shape}; compute it from arange, ones or zeros of volta_fn"
            )
        base, *slopes = [self._dimension(column) for column in zip(*[row for row in rows if row is not None], strict=True)]
        sizes = self._emit("Concat", *[self._size(size) for size in shape], axis=0)
        total = self._emit("Expand", self._size(base), sizes)
        scalar = self._constant([], np.int64)
        for axis, slope in enumerate(slopes):
            if isinstance(slope, Dimension) or slope:
                count = self._emit("Reshape", self._size(shape[axis]), scalar)
                steps = self._emit("Mul", self._emit("Range", self._constant(0), count, self._constant(1)), self._size(slope))
                along = self._constant([-1 if i == axis else 1 for i in range(len(shape))])
                total = self._emit("Add", total, self._emit("Reshape", steps, along))
        return total if dtype == np.int64 else self._emit("Cast", total, to=number_of(dtype))


def _coefficients(array: np.ndarray) -> list[int] | None:
    """Return the integers c, c0, … of an array ``c + c0 * i0 + …``, or None."""
    if not array.size:
        return [0] * (array.ndim + 1)
    wide = array.astype(np.float64)
    origin = (0,) * array.ndim
    base = wide[origin]
    steps = [
        wide[tuple([int(i == axis) for i in range(array.ndim)])] - base if array.shape[axis] > 1 else 0.0 for axis in range(array.ndim)
    ]
    linear = base
    for axis, step in enumerate(steps):
        if step:
            linear = linear + step * np.arange(array.shape[axis]).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    whole = all(float(x).is_integer() for x in (base, *steps))
    return [int(base), *[int(step) for step in steps]] if whole and np.all(wide == linear) else None
