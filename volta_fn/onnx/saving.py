"""`save`: the program of a function as a model, with numbers or symbols as sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.advice import explained
from volta_fn.core.arrays.array import as_value, host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import Dimension
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, called_program, interpret_jaxpr, sub_jaxprs
from volta_fn.errors import ArgumentError, ArgumentTypeError, OnnxError
from volta_fn.export.exported import traced_source
from volta_fn.export.symbolic import Generalizer
from volta_fn.io.files import replacing
from volta_fn.jit import jit
from volta_fn.onnx.nodes import library, number_of
from volta_fn.onnx.rules import BFLOAT16, MOVEMENTS, RULES, Writer

# Sizes.
#
# A function with symbolic sizes is traced, and written as a graph, for several sizes of each symbolic axis. The graphs must have the same
# nodes. Constants that differ are computed from the shapes of the model's inputs instead: numbers that are polynomials of the sizes, such
# as those of a shape; numbers that are divided by a size, as those of a mean; and arrays whose elements depend linearly on their positions.

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


# Models.

_OPSETS = range(20, 25)
_FLOAT32 = np.dtype(np.float32)
#: The version of the file format by that of the operators, as runtimes of the operators' time read it.
_IR_VERSIONS = {20: 9, 21: 10, 22: 10, 23: 11, 24: 12}
#: Models of more bytes have their data in a file of their own: protobuf's limit is 2 GiB.
_LARGEST = 2**31 - 2**20


@explained
def save(f: Callable[..., Any], params: Any, example_args: Sequence[Any], path: str | os.PathLike[str], *, opset: int = 21) -> None:
    """Write a function ``f(params, *example_args)`` as an ONNX model.

    The parameters that the function uses are the model's initializers, named by their path in the tree, the leaves of the arguments its
    inputs x0, x1, …, those of the result its outputs y0, y1, …. Shapes are those of the example. Symbolic sizes, from
    `export.symbolic_shape`, keep their names in the model, which runs for all of them. Gradients are programs too, so a training step can
    be saved; scans, conditionals and while loops become Scan, If and Loop. Arithmetic of bfloat16 is written as that of float32, rounded
    after each operator.

    Args:
        f: a function of arrays that `jit` can trace.
        params: a pytree of arrays.
        example_args: arrays or `ShapeDtypeStruct` for the other arguments.
        path: the file, written atomically. Data of more than 2 GiB are in another file of the same folder.
        opset: the version of the operators, from 20 to 24.

    Raises:
        OnnxError: the function has primitives that ONNX has no operators for; the message lists all of them, with your lines. Or its
            program is not the same for all symbolic sizes.
        DTypeError: it has dtypes that ONNX does not have.
        ArgumentError, ArgumentTypeError: `opset` is not supported, or the arguments are no sequence.
        MissingDependencyError: the package onnx is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.onnx.save(lambda w, x: x @ w, vf.numpy.ones((2, 3)), (vf.ShapeDtypeStruct((4, 2), "float32"),), f"{folder}/m.onnx")
    ...     vf.onnx.load(f"{folder}/m.onnx")[0]
    <onnx function of (x0): 2 nodes, 1 parameters>
    """
    if opset not in _OPSETS:
        raise ArgumentError(f"save: opset must be from {_OPSETS[0]} to {_OPSETS[-1]}, got {opset!r}")
    if not isinstance(example_args, tuple | list):
        raise ArgumentTypeError(f"save: example_args must be a tuple of arguments, got {type(example_args).__name__}; write (x,) for one")
    onnx = library()
    model = _model(f, params, example_args, opset)
    with replacing(Path(path)) as temporary:
        if model.ByteSize() <= _LARGEST:
            onnx.save_model(model, temporary)
        else:
            onnx.save_model(model, temporary, save_as_external_data=True, location=f"{Path(path).name}.data")


def _model(f: Callable[..., Any], params: Any, example_args: Sequence[Any], opset: int) -> Any:
    onnx = library()
    pairs = tree.leaves_with_path(params)
    weights = [(_initializer_name(path), np.asarray(host_buffer(_concrete(leaf)))) for path, leaf in pairs]
    source, _ = traced_source(jit(f), (params, *example_args), {})
    programs = [stage.lower().simplified for stage in source.stages]
    unsupported = _without_rules(programs[0])
    if unsupported:
        raise OnnxError("ONNX has no operators for these primitives of the function:\n" + "\n".join(unsupported))
    in_kinds, out_kinds = programs[0].in_avals[len(weights) :], programs[0].out_avals
    inputs, outputs = [f"x{i}" for i in range(len(in_kinds))], [f"y{i}" for i in range(len(out_kinds))]
    graphs = [_graph(program, [*[name for name, _ in weights], *inputs], outputs, shared=len(programs) == 1) for program in programs]
    merged = graphs[0]
    if len(graphs) > 1:
        shapes = [getattr(leaf, "shape", ()) for leaf in tree.leaves(tuple(example_args))]
        merged = merge(graphs, source.samples, list(zip(inputs, shapes, strict=True)))
    read = set(_names_read(merged.nodes))  # runtimes warn of initializers that no node reads
    graph = onnx.helper.make_graph(
        merged.nodes,
        "volta_fn",
        [_value_info(name, kind.dtype, shape) for name, kind, shape in zip(inputs, in_kinds, merged.inputs[len(weights) :], strict=True)],
        [_value_info(name, kind.dtype, shape) for name, kind, shape in zip(outputs, out_kinds, merged.outputs, strict=True)],
        [onnx.numpy_helper.from_array(value, name) for name, value in [*weights, *merged.constants] if name in read],
    )
    versions = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=versions, ir_version=_IR_VERSIONS[opset], producer_name="volta_fn")


def _names_read(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the names that nodes read, and those inside of the graphs that they run."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _names_read(attribute.g.node)
                yield from [output.name for output in attribute.g.output]


def _concrete(leaf: Any) -> Any:
    value = as_value(leaf)
    if not hasattr(value, "_buffer"):
        raise ArgumentTypeError("save: the parameters must be arrays with values, which become the model's initializers")
    return value


def _initializer_name(path: Any) -> str:
    return "params" + tree.keystr(path).replace("']", "").replace("['", ".").replace("]", "").replace("[", ".")


def _graph(program: ClosedJaxpr, inputs: Sequence[str], outputs: Sequence[str], shared: bool) -> WrittenGraph:
    """Return the graph of a program."""
    writer = GraphWriter(Names(shared))
    for name, output in zip(writer.program(program, inputs), outputs, strict=True):
        writer.nodes.append(library().helper.make_node("Identity", [name], [output]))
    return WrittenGraph(writer.nodes, writer.names.constants, [a.shape for a in program.in_avals], [a.shape for a in program.out_avals])


def _value_info(name: str, dtype: np.dtype, shape: Sequence[Any]) -> Any:
    return library().helper.make_tensor_value_info(name, number_of(dtype), [repr(d) if isinstance(d, Dimension) else d for d in shape])


def _without_rules(program: ClosedJaxpr) -> list[str]:
    """List the primitives that have no rule, with the user's lines."""
    texts: dict[str, None] = {}
    pending: list[ClosedJaxpr] = [program]
    while pending:
        for eqn in pending.pop().eqns:
            called = called_program(eqn)
            if called is not None:
                pending.append(called)
                continue
            if eqn.primitive.name not in RULES:
                texts[f"  {eqn.primitive.name}{'' if eqn.source is None else f', from {eqn.source}'}"] = None
            pending += sub_jaxprs(eqn.params)
    return [*texts]


class Names:
    """Names and constants, which a graph shares with its inner graphs."""

    def __init__(self, shared: bool = True) -> None:
        self.constants: list[tuple[str, np.ndarray]] = []
        #: Whether equal constants have one name. In graphs that are merged they have not, since others may differ there.
        self._shared = shared
        self._count = 0
        self._names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def new(self) -> str:
        """Return a name that is not in use."""
        self._count += 1
        return f"v{self._count}"

    def constant(self, value: np.ndarray) -> str:
        """Return the name of a constant."""
        key = (value.dtype.name, value.shape, value.tobytes()) if self._shared else None
        if key is not None and key in self._names:
            return self._names[key]
        name = self.new()
        self.constants.append((name, value))
        if key is not None:
            self._names[key] = name
        return name


class GraphWriter:
    """Adds nodes to a graph; see `rules.Writer`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[Any] = []
        #: The operand and the attributes of each transposition, by its result.
        self._transposed: dict[str, tuple[str, dict[str, Any]]] = {}

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        """Add a node with one result, and return that result's name.

        A transposed array is converted before its transposition: onnxruntime 1.32 crashes on a product of an array whose leading axes are
        exchanged, then converted.
        """
        if kind == "Cast" and names[0] in self._transposed:
            operand, order = self._transposed[names[0]]
            return self.op("Transpose", self.op("Cast", operand, **attributes), **order)
        result = self.ops(kind, 1, *names, **attributes)[0]
        if kind == "Transpose":
            self._transposed[result] = names[0], attributes
        return result

    def ops(self, kind: str, outputs: int, *names: str, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        results = [self.names.new() for _ in range(outputs)]
        self.nodes.append(library().helper.make_node(kind, list(names), results, **attributes))
        return results

    def constant(self, value: Any) -> str:
        """Return the name of a constant."""
        return self.names.constant(np.asarray(value))

    def program(self, closed: ClosedJaxpr, operands: Sequence[str]) -> list[str]:
        """Add the nodes of a program, and return the names of its results."""
        return interpret_jaxpr(closed, operands, self._equation, lambda constant: self.constant(host_buffer(_concrete(constant))))

    def _equation(self, eqn: Equation, names: list[str]) -> Sequence[str]:
        called = called_program(eqn)
        if called is not None:
            return self.program(called, names[len(names) - len(called.invars) :])
        try:
            results = self._apply(eqn, names)
        except OnnxError as error:
            where = "" if eqn.source is None else f" (from {eqn.source})"
            raise OnnxError(f"{error.message}{where}") from error
        return [results] if isinstance(results, str) else results

    def _apply(self, eqn: Equation, names: Sequence[str]) -> Any:
        """Add an equation's nodes.

        Arithmetic of bfloat16 is that of float32, rounded: onnxruntime has operators of bfloat16 only for movements on CPUs.
        """
        rule = RULES[eqn.primitive.name]
        narrow = [atom.aval.dtype == BFLOAT16 for atom in (*eqn.invars, *eqn.outvars)]
        if not any(narrow) or eqn.primitive.name in MOVEMENTS:
            return rule(self, eqn, *names)
        wide = number_of(_FLOAT32)
        operands = [self.op("Cast", name, to=wide) if cast else name for name, cast in zip(names, narrow, strict=False)]
        variables = [
            Var(atom.aval.update(dtype=_FLOAT32) if cast else atom.aval)
            for atom, cast in zip((*eqn.invars, *eqn.outvars), narrow, strict=True)
        ]
        count = len(eqn.invars)
        results = rule(self, Equation(eqn.primitive, [*variables[:count]], variables[count:], eqn.params, eqn.position), *operands)
        listed = [results] if isinstance(results, str) else results
        return [self.op("Cast", name, to=number_of(BFLOAT16)) if cast else name for name, cast in zip(listed, narrow[count:], strict=True)]

    def graph(self, name: str, inputs: Sequence[ShapedArray], build: Callable[[Writer, Sequence[str]], Sequence[str]]) -> Any:
        """Return a graph that a node runs; `build` adds its nodes."""
        helper = library().helper
        inner = GraphWriter(self.names)
        parameters = [self.names.new() for _ in inputs]
        results = [inner.op("Identity", result) for result in build(inner, parameters)]
        outputs = [helper.make_empty_tensor_value_info(result) for result in results]
        return helper.make_graph(
            inner.nodes, name, [_value_info(n, k.dtype, k.shape) for n, k in zip(parameters, inputs, strict=True)], outputs
        )
