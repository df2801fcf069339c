"""Graphs, read from the file's form once, and run node by node.

An operator that has no function here may be defined by the standard in terms of others; then that definition runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.errors import CorruptFileError, OnnxError, OutOfMemoryError, VoltaError
from volta_fn.lazy_imports import load
from volta_fn.onnx.operators import OPERATORS, Node
from volta_fn.onnx.operators.registry import as_array
from volta_fn.onnx.tensors import from_tensor, library, number_of
from volta_fn.transforms.grad import grad

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
        operator = OPERATORS.get(_key(call))
        if operator is None:
            return self._run_definition(call, self._definition(call, inputs), inputs)
        return operator(self._node(call, inputs, values), *self._to_arrays(call, inputs))

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
    wanted, calls = {target}, []
    for call in reversed(graph.calls):
        if wanted.intersection(call.outputs).difference(sources):
            calls.append(call)
            inner = [inner for value in call.attributes.values() if isinstance(value, Graph) for inner in calls_of(value)]
            wanted.update(*[needed.inputs for needed in (call, *inner)])
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
    small = all(isinstance(v, np.ndarray | np.generic) and (v.dtype.kind in _HOST_KINDS or v.size <= _FEW) for v in values)
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
    except load("google.protobuf.message").DecodeError as error:
        raise CorruptFileError(f"{name} is no ONNX model, or damaged: {error}") from error
    if not model.graph.node and not model.graph.output:
        raise CorruptFileError(f"{name} is no ONNX model: it has no graph")
    return model
