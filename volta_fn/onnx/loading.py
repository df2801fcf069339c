"""`load`: a model as a differentiable function of its graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, CorruptFileError, OnnxError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load as load_module
from volta_fn.onnx.nodes import as_array, dtype_of, from_tensor, library, number_of
from volta_fn.onnx.operators import OPERATORS, Node, quantized
from volta_fn.transforms.grad import grad

# Graphs, read from the file's form once, and run node by node.
#
# An operator that has no function here may be defined by the standard in terms of others; then that definition runs.

_STANDARD = ("", "ai.onnx")
#: The operator that differentiates values of the graph in which it stands.
_GRADIENT = ("ai.onnx.preview.training", "Gradient")
#: The kinds of NumPy's dtypes that stay on the host: integers, booleans, strings.
_HOST_KINDS = "iubOU"
#: The most elements of arrays on the host that floats may be: constants of formulas, sizes and scales.
_FEW = 16
#: Operators whose result is on the host whatever their inputs are.
_HOST = frozenset(
    {"Constant", "ConstantOfShape", "NonMaxSuppression", "NonZero", "Range", "SequenceEmpty", "SequenceLength", "Shape", "Size", "Unique"}
)
#: Operators that move elements. Constants of any size stay on the host there, so that programs have them as they are used.
_MOVEMENT = frozenset({"Concat", "Expand", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})

Values = dict[str, Any]


@dataclass
class Call:
    """A node of a graph."""

    op: str
    domain: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: dict[str, Any]
    #: The node as the file has it, for definitions that depend on it.
    proto: Any = field(repr=False)

    def __str__(self) -> str:
        return f"{self.op} ({self.name or ', '.join(self.outputs)})"


@dataclass
class Graph:
    """A graph: inputs, initializers, nodes and outputs, by name."""

    inputs: list[str]
    outputs: list[str]
    calls: list[Call]
    initializers: dict[str, np.ndarray]


class GraphReader:
    """Reads graphs of a model, whose external data are in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def graph(self, proto: Any) -> Graph:
        """Return a graph; raise `CorruptFileError` for data that cannot be read."""
        tensors = {t.name: from_tensor(t, self._folder) for t in proto.initializer}
        if len(proto.sparse_initializer):
            raise OnnxError("sparse initializers are not supported; convert them to dense ones")
        return Graph([i.name for i in proto.input], [o.name for o in proto.output], [self.call(n) for n in proto.node], tensors)

    def call(self, proto: Any) -> Call:
        """Return a node with its attributes as Python values."""
        attributes = {a.name: self._attribute(a) for a in proto.attribute if not a.ref_attr_name}
        return Call(proto.op_type, proto.domain, proto.name, list(proto.input), list(proto.output), attributes, proto)

    def _attribute(self, proto: Any) -> Any:
        value = library().helper.get_attribute_value(proto)
        if proto.type == proto.TENSOR:
            return from_tensor(value, self._folder)
        if proto.type == proto.GRAPH:
            return self.graph(value)
        if proto.type in (proto.INTS, proto.FLOATS):
            return list(value)
        if proto.type == proto.STRINGS:
            return [v.decode() for v in value]
        return value.decode() if isinstance(value, bytes) else value


class Interpreter:
    """Runs graphs of a model."""

    def __init__(self, reader: GraphReader, versions: Mapping[str, int], functions: Mapping[tuple[str, str], Any]) -> None:
        self._reader, self._functions = reader, functions
        self.opset = versions.get("", versions.get("ai.onnx", 1))
        self._definitions: dict[tuple[str, str], bool] = {}
        #: By the number of a graph, the results of its DequantizeLinear nodes that only products read.
        self._codes: dict[int, frozenset[str]] = {}

    def run(self, graph: Graph, values: Values) -> list[Any]:
        """Run a graph; `values` has its inputs and the values of the graphs around it."""
        values.update(graph.initializers)
        for call in graph.calls:
            self._step(call, values, graph)
        return [values[name] for name in graph.outputs]

    def _step(self, call: Call, values: Values, graph: Graph | None = None) -> None:
        inputs = [values[name] if name else None for name in call.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        try:
            results = self._call(call, inputs, values, graph)
        except (VoltaError, NotImplementedError):
            raise
        except MemoryError as error:
            raise OutOfMemoryError(f"the node {call} has no room for its result: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise OnnxError(f"the node {call} cannot be run: {error}") from error
        for name, value in zip(call.outputs, results if isinstance(results, tuple | list) else (results,), strict=False):
            values[name] = value

    def _call(self, call: Call, inputs: list[Any], values: Values, graph: Graph | None) -> Any:
        if graph is not None and (call.domain, call.op) == _GRADIENT:
            return self._gradient(call, inputs, values, graph)
        local = self._functions.get((call.domain, call.op))
        if local is not None:
            return self._run_definition(call, local, inputs)
        if graph is not None and call.op == "DequantizeLinear" and call.outputs[0] in self._only_multiplied(graph):
            return quantized.codes_of(self._node(call, inputs, values), *self._to_arrays(call, inputs))
        if any(isinstance(v, quantized.Codes) for v in inputs):
            arrays = [v if isinstance(v, quantized.Codes) else as_array(v) for v in inputs]
            return quantized.PRODUCTS_OF_CODES[call.op](self._node(call, [], values), *arrays)
        operator = OPERATORS.get(_key(call))
        if operator is None:
            return self._run_definition(call, self._definition(call, inputs), inputs)
        return operator(self._node(call, inputs, values), *self._to_arrays(call, inputs))

    def _only_multiplied(self, graph: Graph) -> frozenset[str]:
        """Return the results of a graph's DequantizeLinear nodes that only products read."""
        if id(graph) not in self._codes:
            others = [call for call in graph.calls if _key(call) not in quantized.PRODUCTS_OF_CODES]
            inner = [c for call in graph.calls for value in call.attributes.values() if isinstance(value, Graph) for c in calls_of(value)]
            read = {name for call in (*others, *inner) for name in call.inputs} | set(graph.outputs)
            computed = {call.outputs[0] for call in graph.calls if _key(call) == "DequantizeLinear"}
            self._codes[id(graph)] = frozenset(computed - read)
        return self._codes[id(graph)]

    def _gradient(self, call: Call, inputs: list[Any], values: Values, graph: Graph) -> Any:
        """Return the derivatives of a value by some inputs, at their current values."""
        count, names = len(call.attributes["xs"]), [*call.attributes["xs"], *call.attributes.get("zs", [])]
        target = call.attributes["y"]
        needed = _dependencies(graph, target, names)

        def total(*xs: Any) -> Any:
            inner = values | dict(zip(names, [*xs, *inputs[count:]], strict=True))
            for step in needed:
                self._step(step, inner, graph)
            return vnp.sum(inner[target])

        return grad(total, argnums=tuple(range(count)))(*[as_array(x) for x in inputs[:count]])

    def _node(self, call: Call, inputs: Sequence[Any], values: Values) -> Node:
        def run(graph: Graph, *arguments: Any) -> list[Any]:
            return self.run(graph, values | dict(zip(graph.inputs, arguments, strict=False)))

        xp = np if _on_host(call.op, inputs) else vnp
        name = call.name or ", ".join(call.outputs)
        return Node(call.op, name, call.attributes, xp, len(call.outputs), self.opset, run)

    def _to_arrays(self, call: Call, inputs: list[Any]) -> list[Any]:
        """Convert floats on the host to arrays, unless all inputs stay on the host."""
        if _on_host(call.op, inputs) or call.op in _HOST or call.op in ("Loop", "If", "Scan"):
            return inputs
        return [vnp.asarray(v) if isinstance(v, np.ndarray) and v.dtype.kind not in _HOST_KINDS else v for v in inputs]

    def _run_definition(self, call: Call, definition: Any, inputs: list[Any]) -> list[Any]:
        values: Values = dict.fromkeys(definition.input)
        values.update(zip(definition.input, inputs, strict=False))
        defaults = {a.name: library().helper.get_attribute_value(a) for a in getattr(definition, "attribute_proto", ())}
        inner = Interpreter(self._reader, {o.domain: o.version for o in definition.opset_import} or {"": self.opset}, self._functions)
        for proto in definition.node:
            inner._step(self._bind(proto, defaults | call.attributes), values)
        return [values.get(name) for name in definition.output]

    def _bind(self, proto: Any, attributes: Mapping[str, Any]) -> Call:
        """Return a node of a definition with the attributes that it takes from its caller."""
        helper, bound = library().helper, type(proto)()
        bound.CopyFrom(proto)
        del bound.attribute[:]
        for attribute in proto.attribute:
            if not attribute.ref_attr_name:
                bound.attribute.append(attribute)
            elif attribute.ref_attr_name in attributes:
                value = attributes[attribute.ref_attr_name]
                value = library().numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
                bound.attribute.append(helper.make_attribute(attribute.name, value))
        call = self._reader.call(bound)
        for name, value in call.attributes.items():
            if isinstance(value, Graph):
                protos = next(a for a in proto.attribute if a.name == name).g.node
                call.attributes[name] = Graph(value.inputs, value.outputs, [self._bind(p, attributes) for p in protos], value.initializers)
        return call

    def _definition(self, call: Call, inputs: Sequence[Any]) -> Any:
        schema = self._schema(call)
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            raise OnnxError(f"the operator {call.domain or 'ai.onnx'}.{call.op} (node {call.name!r}) is not supported")
        if schema.has_function:
            return schema.function_body
        return _contextual_definition(schema, call, inputs)

    def _schema(self, call: Call) -> Any:
        onnx = library()
        try:
            return onnx.defs.get_schema(call.op, self.opset, "" if call.domain in _STANDARD else call.domain)
        except onnx.defs.SchemaError:
            return None

    def is_supported(self, call: Call) -> bool:
        """Return True if an operator can be run."""
        if (call.domain, call.op) in self._functions or _key(call) in OPERATORS or (call.domain, call.op) == _GRADIENT:
            return True
        key = (call.domain, call.op)
        if key not in self._definitions:
            schema = self._schema(call)
            self._definitions[key] = schema is not None and bool(schema.has_function or schema.has_context_dependent_function)
        return self._definitions[key]


def _key(call: Call) -> str:
    """Return the name of an operator in `OPERATORS`."""
    return call.op if call.domain in _STANDARD else f"{call.domain}.{call.op}"


def _dependencies(graph: Graph, target: str, sources: Sequence[str]) -> list[Call]:
    """Return the nodes that compute a value from `sources`, in order."""
    pending, calls = {target}, []
    for call in reversed(graph.calls):
        if pending.intersection(call.outputs).difference(sources):
            calls.append(call)
            inner = [inner for value in call.attributes.values() if isinstance(value, Graph) for inner in calls_of(value)]
            pending.update(*[needed.inputs for needed in (call, *inner)])
    return calls[::-1]


def _contextual_definition(schema: Any, call: Call, inputs: Sequence[Any]) -> Any:
    """Return the definition of an operator for the types of its inputs."""
    onnx = library()
    types = []
    for value in inputs:
        kind = onnx.TypeProto() if value is None else onnx.helper.make_tensor_type_proto(number_of(value.dtype), value.shape)
        types.append(kind.SerializeToString())
    definition = onnx.FunctionProto()
    definition.ParseFromString(schema.get_context_dependent_function(call.proto.SerializeToString(), types))
    return definition


def _on_host(op: str, inputs: Sequence[Any]) -> bool:
    values = [chunk for v in inputs if v is not None for chunk in (v if isinstance(v, tuple) else (v,))]
    if not all(isinstance(v, np.ndarray | np.generic) for v in values):
        return False
    small = op in _MOVEMENT or all(v.dtype.kind in _HOST_KINDS or v.size <= _FEW for v in values)
    return small and (bool(values) or op in _HOST)


def check_order(graph: Graph, outer: frozenset[str] = frozenset()) -> None:
    """Check that each value of a graph is computed once, and before its use.

    Raises `CorruptFileError`. A graph in a node also has the values of the graphs around it, `outer`.
    """
    names = {"", *outer, *graph.inputs, *graph.initializers}
    computed = {*graph.inputs, *graph.initializers}
    for call in graph.calls:
        _check_names(f"the node {call}", call.inputs, names)
        for value in call.attributes.values():
            if isinstance(value, Graph):
                check_order(value, frozenset(names))
        for name in filter(None, call.outputs):
            if name in computed:
                raise CorruptFileError(f"the model is damaged: the node {call} computes {name!r}, which there is already")
            computed.add(name)
            names.add(name)
    _check_names("the graph", graph.outputs, names)


def _check_names(user: str, used: Sequence[str], names: set[str]) -> None:
    missing = [name for name in used if name not in names]
    if missing:
        raise CorruptFileError(f"the model is damaged: {user} uses {missing[0]!r}, which nothing before it computes")


def calls_of(graph: Graph) -> list[Call]:
    """List the nodes of a graph and of those in it."""
    calls = []
    for call in graph.calls:
        calls.append(call)
        for value in call.attributes.values():
            calls += calls_of(value) if isinstance(value, Graph) else []
    return calls


def parsed(content: bytes, name: str) -> Any:
    """Return the model in a file's bytes; raise `CorruptFileError` if there is none."""
    onnx = library()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except load_module("google.protobuf.message").DecodeError as error:
        raise CorruptFileError(f"{name} is no ONNX model, or damaged: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise CorruptFileError(f"{name} is no ONNX model: it has no graph")
    return model


# `load`: a model as a differentiable function and its parameters.

#: Floats with at most so many elements are constants, unless they have the rank of weights.


def load(path: str | os.PathLike[str]) -> tuple[OnnxFunction, dict[str, Array]]:
    """Read an ONNX model; return its function and its parameters.

    The function is ``f(params, *inputs)``, with the model's inputs by position or by name; it returns the model's output, or a tuple of
    several. `params` are the initializers of floating dtypes by name: `grad`, `jit` and `vmap` apply to all of them.

    Integers that decide shapes have to be known: constants of the model, and inputs that are given as NumPy arrays. Other integers may be
    traced.

    Args:
        path: the file; external data are read from its folder. Or the file's bytes.

    Raises:
        OnnxError: the model has operators that are not supported; the message lists all of them.
        CorruptFileError: it is no model, its data do not fit, or a value is computed twice, or used before it is computed.
        DTypeError: it has tensors of dtypes that arrays do not have.
        MissingDependencyError: the package onnx is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vf.onnx.save(lambda w, x: vf.numpy.tanh(x @ w), vf.numpy.ones((2, 3)), (vf.numpy.ones((1, 2)),), f"{folder}/model.onnx")
    ...     f, params = vf.onnx.load(f"{folder}/model.onnx")
    >>> f, f(params, vf.numpy.zeros((1, 2)))
    (<onnx function of (x0): 3 nodes, 1 parameters>, Array([[0., 0., 0.]], dtype=float32))
    """
    if isinstance(path, bytes | bytearray):
        name, content, folder = "the model", bytes(path), Path()
    else:
        name, content, folder = str(path), Path(path).read_bytes(), Path(path).parent
    model = parsed(content, name)
    try:
        function = OnnxFunction(model, GraphReader(folder))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, VoltaError):
            raise
        raise CorruptFileError(f"{name} is damaged: {type(error).__name__}: {error}"[:300]) from error
    return function, function.parameters()


class OnnxFunction:
    """The function of a model, from `load`."""

    def __init__(self, model: Any, reader: GraphReader) -> None:
        versions = {o.domain: o.version for o in model.opset_import}
        functions = {(f.domain, f.name): f for f in model.functions}
        self._graph = reader.graph(model.graph)
        check_order(self._graph)
        self._interpreter = Interpreter(reader, versions, functions)
        self._types = {i.name: i.type.tensor_type for i in model.graph.input}
        self._check_operators([reader.call(node) for f in model.functions for node in f.node])
        used = self._graph.initializers
        #: The names of the model's inputs and outputs.
        self.input_names: tuple[str, ...] = tuple([name for name in self._graph.inputs if name not in used])
        self.output_names: tuple[str, ...] = tuple(self._graph.outputs)
        self._parameters = {name: value for name, value in used.items() if _is_parameter(value)}

    def __repr__(self) -> str:
        names = ", ".join(self.input_names)
        return f"<onnx function of ({names}): {len(self._graph.calls)} nodes, {len(self._parameters)} parameters>"

    def _check_operators(self, more: list[Any]) -> None:
        missing = [c for c in [*calls_of(self._graph), *more] if not self._interpreter.is_supported(c)]
        if missing:
            texts = [f"  {c.domain or 'ai.onnx'}.{c.op}, node {c.name or ', '.join(c.outputs)!r}" for c in missing]
            raise OnnxError("the model has operators that are not supported:\n" + "\n".join(texts))

    def parameters(self) -> dict[str, Array]:
        """Return the initializers of floating dtypes as arrays."""
        return {name: vnp.asarray(value) for name, value in self._parameters.items()}

    def __call__(self, params: dict[str, Any], *inputs: Any, **named: Any) -> Any:
        """Run the model.

        Raises `ArgumentError` for parameters or inputs that are missing or unknown, `OnnxError` where a traced value decides a shape, and
        `OutOfMemoryError` where a value has no room.
        """
        values: Values = {"": None}
        graph = self._graph
        if params.keys() != self._parameters.keys():
            difference = sorted(params.keys() ^ self._parameters.keys())
            raise ArgumentError(f"the parameters must be those that load returned; these differ: {difference}")
        arguments = dict(zip(self.input_names, inputs, strict=False)) | named
        if len(inputs) > len(self.input_names) or arguments.keys() - set(graph.inputs) or set(self.input_names) - arguments.keys():
            raise ArgumentError(
                f"the model's inputs are {list(self.input_names)}, got {len(inputs)} by position and {sorted(named)} by name"
            )
        values.update({name: _as_input(value, self._types[name]) for name, value in arguments.items()})
        initializers = {**graph.initializers, **params, **{n: v for n, v in values.items() if n in graph.initializers}}
        outputs = self._interpreter.run(Graph(graph.inputs, graph.outputs, graph.calls, initializers), values)
        arrays = [v if isinstance(v, np.ndarray) and v.dtype.kind in "OU" else vnp.asarray(v) for v in outputs]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _is_parameter(value: np.ndarray) -> bool:
    return value.dtype.kind not in "iub" and (value.size > _FEW or value.ndim > 1)


def _as_input(value: Any, kind: Any) -> Any:
    """Return an input.

    Strings stay on the host, and so do integers and booleans that are NumPy arrays.
    """
    if value is None or isinstance(value, Tracer | Array):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "OU":
        return array
    dtype = dtype_of(kind.elem_type) if kind.elem_type else array.dtype
    array = array.astype(dtype) if isinstance(value, bool | int | float) else array
    return array if array.dtype.kind in "iub" else vnp.asarray(array)
