"""`save`: the program of a function as a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.advice import explained
from volta_fn.core.arrays.array import as_value, host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import Dimension
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, called_program, interpret_jaxpr, sub_jaxprs
from volta_fn.errors import ArgumentError, ArgumentTypeError, OnnxError
from volta_fn.export.exported import traced_source
from volta_fn.io.files import replacing
from volta_fn.jit import jit
from volta_fn.onnx.rules import RULES
from volta_fn.onnx.rules.registry import Writer
from volta_fn.onnx.rules.structure import BFLOAT16, MOVEMENTS
from volta_fn.onnx.sizes import WrittenGraph, merge
from volta_fn.onnx.tensors import library, number_of

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

    >>> import volta_fn as vf, tempfile
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
    """Adds nodes to a graph; see `rules.registry.Writer`."""

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
