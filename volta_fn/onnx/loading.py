"""`load`: a model as a differentiable function and its parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, CorruptFileError, OnnxError, VoltaError
from volta_fn.onnx.graphs import Graph, GraphReader, Interpreter, Values, calls_of, check_order, parsed
from volta_fn.onnx.tensors import dtype_of

#: Floats with at most so many elements are constants, unless they have the rank of weights.
_FEW = 16


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

    >>> import volta_fn as vf, tempfile
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
