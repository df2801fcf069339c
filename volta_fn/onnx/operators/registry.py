"""Declaration of operators, and their arguments.

An operator is a function ``(node, *inputs) -> output or tuple of outputs``. An input is an `Array`, or a NumPy array if it is known on the
host: a small constant, the shape of something, or an integer that the caller gave as a NumPy array. From such inputs alone `node.xp`
computes NumPy arrays, so that shapes stay on the host under `jit`. Inputs that are left out are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.trace import Tracer
from volta_fn.errors import OnnxError

Operator = Callable[..., Any]

#: Operators by name, those of other domains as "domain.name".
OPERATORS: dict[str, Operator] = {}


class Node(NamedTuple):
    """A call of an operator: its name, attributes and context."""

    op: str
    name: str
    attributes: Mapping[str, Any]
    #: NumPy if all inputs are on the host, else `volta_fn.numpy`.
    xp: Any
    #: The number of outputs.
    outputs: int
    #: The version of the operators.
    opset: int
    #: Run a graph that is an attribute: ``run(graph, *inputs) -> outputs``.
    run: Callable[..., list[Any]]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return self.attributes.get(name, default)

    def ints(self, value: Any, name: str) -> list[int]:
        """Return an input that decides a shape as integers.

        Raises `OnnxError` if it is not known on the host.
        """
        return [int(v) for v in self.host(value, name).reshape(-1)]

    def host(self, value: Any, name: str) -> np.ndarray:
        """Return an input that has to be known on the host."""
        if isinstance(value, Tracer):
            raise OnnxError(
                f"{self}: its input {name!r} decides a shape, so it must be known, but it is traced; pass the model's input that it "
                "depends on as a NumPy array that the jitted function closes over, or by static_argnums"
            )
        return np.asarray(value)

    def axes(self, value: Any) -> list[int] | None:
        """Return axes from an input or, of older versions, from the attribute."""
        attribute = self.get("axes")
        return attribute if value is None else self.ints(value, "axes")

    def __str__(self) -> str:
        return f"{self.op} ({self.name})" if self.name else self.op


def operator(*names: str) -> Callable[[Operator], Operator]:
    """Declare a function to be the operators of these names (decorator)."""

    def declare(function: Operator) -> Operator:
        for name in names:
            OPERATORS[name] = function
        return function

    return declare


def as_array(value: Any) -> Any:
    """Return an input as an `Array`."""
    return vnp.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def along(values: Any, axis: int, ndim: int) -> Any:
    """Reshape a vector such that it lies along one of `ndim` axes."""
    return values.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def per_channel(values: Any, ndim: int) -> Any:
    """Reshape a vector such that it lies along axis 1."""
    return along(as_array(values), 1, ndim)


def is_float(value: Any) -> bool:
    """Return True for real floating dtypes, also 16-bit ones."""
    return bool(vnp.issubdtype(value.dtype, np.floating))


def wrapped(indices: Any, size: int) -> Any:
    """Count negative indices from the end."""
    return as_array(indices + (indices < 0) * np.asarray(size, indices.dtype))


def only(values: Sequence[Any]) -> Any:
    """Return the single element of a sequence."""
    (value,) = values
    return value
