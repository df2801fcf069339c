"""`save`: the program of a function as a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import as_value, host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, called_program, interpret_jaxpr, sub_jaxprs
from volta_fn.errors import ArgumentError, ArgumentTypeError, OnnxError
from volta_fn.io.files import replacing
from volta_fn.jit import jit
from volta_fn.onnx.rules import RULES
from volta_fn.onnx.rules.registry import Writer
from volta_fn.onnx.tensors import library, number_of

_OPSETS = range(20, 25)
#: The version of the file format by that of the operators, as runtimes of the operators' time read it.
_IR_VERSIONS = {20: 9, 21: 10, 22: 10, 23: 11, 24: 12}
#: Models of more bytes have their data in a file of their own: protobuf's limit is 2 GiB.
_LARGEST = 2**31 - 2**20


def save(f: Callable[..., Any], params: Any, example_args: Sequence[Any], path: str | os.PathLike[str], *, opset: int = 21) -> None:
    """Write a function ``f(params, *example_args)`` as an ONNX model.

    The parameters are the model's initializers, named by their path in the tree, the leaves of the arguments its inputs x0, x1, …, those
    of the result its outputs y0, y1, …. Shapes are those of the example. Gradients are programs too, so a training step can be saved;
    scans, conditionals and while loops become Scan, If and Loop.

    Args:
        f: a function of arrays that `jit` can trace.
        params: a pytree of arrays.
        example_args: arrays or `ShapeDtypeStruct` for the other arguments.
        path: the file, written atomically. Data of more than 2 GiB are in another file of the same folder.
        opset: the version of the operators, from 20 to 24.

    Raises:
        OnnxError: the function has primitives that ONNX has no operators for; the message lists all of them, with your lines.
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
    program = jit(f).lower(params, *example_args).simplified
    unsupported = _without_rules(program)
    if unsupported:
        raise OnnxError("ONNX has no operators for these primitives of the function:\n" + "\n".join(unsupported))
    pairs = tree.leaves_with_path(params)
    writer = GraphWriter(Names())
    weights = [(_initializer_name(path), np.asarray(host_buffer(_concrete(leaf)))) for path, leaf in pairs]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in weights]
    kinds = program.in_avals
    inputs = [f"x{i}" for i in range(len(kinds) - len(weights))]
    results = writer.program(program, [*[name for name, _ in weights], *inputs])
    outputs = [f"y{i}" for i in range(len(results))]
    for name, output in zip(results, outputs, strict=True):
        writer.nodes.append(onnx.helper.make_node("Identity", [name], [output]))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "volta_fn",
        [_value_info(name, kind) for name, kind in zip(inputs, kinds[len(weights) :], strict=True)],
        [_value_info(name, kind) for name, kind in zip(outputs, program.out_avals, strict=True)],
        [*tensors, *writer.names.tensors],
    )
    versions = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=versions, ir_version=_IR_VERSIONS[opset], producer_name="volta_fn")


def _concrete(leaf: Any) -> Any:
    value = as_value(leaf)
    if not hasattr(value, "_buffer"):
        raise ArgumentTypeError("save: the parameters must be arrays with values, which become the model's initializers")
    return value


def _initializer_name(path: Any) -> str:
    return "params" + tree.keystr(path).replace("']", "").replace("['", ".").replace("]", "").replace("[", ".")


def _value_info(name: str, kind: ShapedArray) -> Any:
    return library().helper.make_tensor_value_info(name, number_of(kind.dtype), kind.shape)


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

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def new(self) -> str:
        """Return a name that is not in use."""
        self._count += 1
        return f"v{self._count}"

    def constant(self, value: np.ndarray) -> str:
        """Return the name of a constant; equal ones are stored once."""
        key = (value.dtype.name, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.new()
            self.tensors.append(library().numpy_helper.from_array(value, self._constants[key]))
        return self._constants[key]


class GraphWriter:
    """Adds nodes to a graph; see `rules.registry.Writer`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.nodes: list[Any] = []

    def op(self, kind: str, *names: str, **attributes: Any) -> str:
        """Add a node with one result, and return that result's name."""
        return self.ops(kind, 1, *names, **attributes)[0]

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
            results = RULES[eqn.primitive.name](self, eqn, *names)
        except OnnxError as error:
            where = "" if eqn.source is None else f" (from {eqn.source})"
            raise OnnxError(f"{error.message}{where}") from error
        return [results] if isinstance(results, str) else results

    def graph(self, name: str, inputs: Sequence[ShapedArray], build: Callable[[Writer, Sequence[str]], Sequence[str]]) -> Any:
        """Return a graph that a node runs; `build` adds its nodes."""
        helper = library().helper
        inner = GraphWriter(self.names)
        parameters = [self.names.new() for _ in inputs]
        results = [inner.op("Identity", result) for result in build(inner, parameters)]
        outputs = [helper.make_empty_tensor_value_info(result) for result in results]
        return helper.make_graph(inner.nodes, name, [_value_info(n, k) for n, k in zip(parameters, inputs, strict=True)], outputs)
