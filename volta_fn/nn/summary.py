"""`summary`: the outputs and parameters of a model's layers.

The model is rebuilt from recording layers, which record their outputs, and is called with shapes alone. Recording layers are instances
of subclasses of the layers' classes, so that the model's code finds everything that it expects.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from volta_fn import tree
from volta_fn.core import html
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.errors import ArgumentTypeError
from volta_fn.nn.layers.containers import Lambda
from volta_fn.nn.module import Module, apply, describe, parameter_count
from volta_fn.transforms.make_jaxpr import eval_shape

__all__ = ["Summary", "SummaryRow", "summary"]


@dataclass(frozen=True)
class SummaryRow:
    """A layer of a summary: path, name, last output, number of parameters.

    `output` is a pytree of `ShapeDtypeStruct`, or None for a layer that was not called.
    """

    path: str
    layer: str
    output: Any
    parameters: int


@dataclass(frozen=True)
class Summary:
    """A model's layers, output and sizes, which prints as a table."""

    model: str
    rows: tuple[SummaryRow, ...]
    output: Any
    parameters: int
    parameter_bytes: int
    state_bytes: int

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [(row.path, row.layer, _text(row.output), f"{row.parameters:,}") for row in self.rows]
        return [("path", "layer", "output", "parameters"), *rows]

    def _repr_html_(self) -> str:
        return html.folded(str(self).splitlines()[-1], html.table(self._cells()), opened=True)

    def __str__(self) -> str:
        table = self._cells()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = ["  ".join([*[cell.ljust(n) for cell, n in zip(row[:3], widths, strict=False)], row[3].rjust(widths[3])]) for row in table]
        rule = "-" * len(rows[0])
        state = f", state of {self.state_bytes:,} bytes" if self.state_bytes else ""
        total = f"{self.model}: {_text(self.output)}; {self.parameters:,} parameters in {self.parameter_bytes:,} bytes{state}"
        return "\n".join([rows[0], rule, *rows[1:], rule, total])

    __repr__ = __str__


def summary(model: Module, x: Any, state: Any = None, key: Any = None, training: bool = False) -> Summary:
    """Tabulate the layers of a model, with outputs for `x` and parameters.

    Only shapes are computed.

    Args:
        model: a module; its leaves may be `ShapeDtypeStruct`.
        x: its input, an array or `ShapeDtypeStruct`.
        state: its state, if it has one.
        key: a random key, if it draws random numbers.
        training: whether it is called as in training.

    Outputs of layers inside `vmap` and `scan` are without the axes that those add. Raises `ArgumentTypeError` if `model` is no module or
    its state is missing, and the errors of the model.

    >>> model = nn.Sequential(conv=nn.Conv2d.init(vf.random.key(0), 3, 8, 3), act=nn.relu, pool=nn.GlobalAvgPool.init())
    >>> nn.summary(model, vf.ShapeDtypeStruct((32, 3, 10, 10), "float32"))
    path  layer          output         parameters
    ----------------------------------------------
    conv  Conv2d         f32[32,8,8,8]         224
    act   Lambda(relu)   f32[32,8,8,8]           0
    pool  GlobalAvgPool  f32[32,8]               0
    ----------------------------------------------
    Sequential: f32[32,8]; 224 parameters in 896 bytes
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"summary: the model is a Module, got {type(model).__name__}; wrap a function in nn.Lambda")
    record = _Record()

    def call(model: Module, x: Any, state: Any, key: Any) -> Any:
        return apply(_recording(model, "", record), x, state, key=key, training=training)[0]

    output = eval_shape(call, model, x, state, key)
    rows = [
        SummaryRow(path, _title(layer), record.outputs.get(path), parameter_count(layer)) for path, layer in record.layers.items() if path
    ]
    return Summary(type(model).__name__, tuple(rows), output, parameter_count(model), _bytes(model), _bytes(state))


class _Record:
    """The layers of a model by path, outer before inner ones, and their outputs."""

    def __init__(self) -> None:
        self.layers: dict[str, Module] = {}
        self.outputs: dict[str, Any] = {}


def _recording(module: Module, path: str, record: _Record) -> Module:
    """Replace a module and its layers by recording ones."""
    record.layers[path] = module

    def child(key_path: tree.KeyPath, value: Any) -> Any:
        name = tree.keystr(key_path, simple=True, separator=".")
        return _recording(value, f"{path}.{name}" if path else name, record) if isinstance(value, Module) else value

    inner = tree.map_with_path(child, module, is_leaf=lambda value: isinstance(value, Module) and value is not module)
    kind: Any = type(module)
    return _recording_class(kind)._rebuild((inner._structure(), path, record), list(inner.children().values()))


@functools.cache
def _recording_class(cls: type[Module]) -> type[Module]:
    """Return the subclass of a layer's class whose instances record their outputs.

    The record belongs to their structure, so that compiled functions inside the model are traced again for each summary.
    """

    def rebuild(new: type[Module], structure: Any, children: Any) -> Module:
        inner, path, record = structure
        module = cls._rebuild.__func__(new, inner, children)  # type: ignore[attr-defined]  # the class method, for the subclass
        module.__dict__.update(_path=path, _record=record)
        return module

    def replace(self: Any, **changes: Any) -> Any:
        changed = cls.replace(self, **changes)
        changed.__dict__.update(_path=self._path, _record=self._record)
        return changed

    def structure(self: Any) -> Any:
        return cls._structure(self), self._path, self._record

    members = {"__init__": cls.__init__, "replace": replace, "_structure": structure, "_rebuild": classmethod(rebuild)}
    if any("__call__" in vars(base) for base in cls.__mro__):

        @functools.wraps(cls.__call__)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            out = cls.__call__(self, *args, **kwargs)
            self._record.outputs[self._path] = _shapes(out[0] if "state" in self.takes else out)
            return out

        members["__call__"] = call
    return type(cls.__name__, (cls,), members)


def _shapes(out: Any) -> Any:
    return tree.map(lambda leaf: ShapeDtypeStruct(leaf.shape, leaf.dtype), out)


def _bytes(value: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree.leaves(value))


def _title(layer: Module) -> str:
    name = type(layer).__name__
    return f"{name}({getattr(layer.function, '__name__', '…')})" if isinstance(layer, Lambda) else name


def _text(output: Any) -> str:
    return "not called" if output is None else describe(output)
