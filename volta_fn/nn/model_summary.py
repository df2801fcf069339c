"""`summary`: the outputs, parameters, operations and memory of a model's layers.

The model is rebuilt from recording layers, which record their outputs, and is called with shapes alone. A layer is a block with a name
meanwhile, which its equations carry, so that their operations can be counted for each layer. Recording layers are instances
of subclasses of the layers' classes, so that the model's code finds everything that it expects.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from volta_fn import tree
from volta_fn.core.arrays import html
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs
from volta_fn.core.staging import make_jaxpr
from volta_fn.errors import ArgumentTypeError
from volta_fn.jit.compile import cost_of, operations_of
from volta_fn.nn.layers.containers import Lambda
from volta_fn.nn.module import Module, apply, describe, parameter_count
from volta_fn.primitives.loops import cond_p
from volta_fn.source import current_scope, signature

__all__ = ["Summary", "SummaryRow", "summary"]


@dataclass(frozen=True)
class SummaryRow:
    """A layer of a summary, with the layers in it.

    Attributes:
        path, layer: where it is in the model, and its class.
        output: its last output, a pytree of `ShapeDtypeStruct`; None if it was not called.
        parameters: how many it has.
        flops: the operations of all its calls.
        bytes: of its parameters and its last output.
    """

    path: str
    layer: str
    output: Any
    parameters: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """A model's layers, output and sizes, which prints as a table."""

    model: str
    rows: tuple[SummaryRow, ...]
    output: Any
    parameters: int
    parameter_bytes: int
    state_bytes: int
    flops: int

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [(row.path, row.layer, _text(row.output), f"{row.parameters:,}", f"{row.flops:,}", f"{row.bytes:,}") for row in self.rows]
        return [("path", "layer", "output", "parameters", "FLOPs", "bytes"), *rows]

    def _repr_html_(self) -> str:
        return html.folded(str(self).splitlines()[-1], html.table(self._cells()), opened=True)

    def __str__(self) -> str:
        table = self._cells()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = ["  ".join([c.ljust(n) if i < 3 else c.rjust(n) for i, (c, n) in enumerate(zip(row, widths, strict=True))]) for row in table]
        rule = "-" * len(rows[0])
        state = f", state of {self.state_bytes:,} bytes" if self.state_bytes else ""
        size = f"{self.parameters:,} parameters in {self.parameter_bytes:,} bytes{state}"
        total = f"{self.model}: {_text(self.output)}; {size}; {self.flops:,} FLOPs"
        return "\n".join([rows[0], rule, *rows[1:], rule, total])

    __repr__ = __str__


def summary(model: Module, *inputs: Any, state: Any = None, key: Any = None, training: bool = False, **kwargs: Any) -> Summary:
    """Tabulate the layers of a model: outputs, parameters, FLOPs, memory.

    Only shapes are computed. The bytes of a layer are those of its parameters and of its output; FLOPs are counted in the program that the
    model becomes, as `jit(f).lower(x).cost_analysis()` counts them.

    Args:
        model: a module; its leaves may be `ShapeDtypeStruct`.
        inputs: what it is called with: pytrees of arrays or `ShapeDtypeStruct`, and options such as None or text.
        state: its state, if it has one; it may also be the second input, as in the call.
        key: a random key, if it draws random numbers.
        training: whether it is called as in training.
        kwargs: further arguments of the call.

    Outputs of layers inside `vmap` and `scan` are without the axes that those add; their FLOPs are those of all iterations. Raises
    `ArgumentTypeError` if `model` is no module, if its state or an input is missing, or for a shape in place of an input, and the errors of
    the model.

    >>> model = nn.Sequential(conv=nn.Conv2d.init(vf.random.key(0), 3, 8, 3), act=nn.relu, pool=nn.GlobalAvgPool.init())
    >>> nn.summary(model, vf.ShapeDtypeStruct((32, 3, 10, 10), "float32"))
    path  layer          output         parameters    FLOPs   bytes
    ---------------------------------------------------------------
    conv  Conv2d         f32[32,8,8,8]         224  901,120  66,432
    act   Lambda(relu)   f32[32,8,8,8]           0   16,384  65,536
    pool  GlobalAvgPool  f32[32,8]               0   16,640   1,024
    ---------------------------------------------------------------
    Sequential: f32[32,8]; 224 parameters in 896 bytes; 934,144 FLOPs
    """
    if not isinstance(model, Module):
        raise ArgumentTypeError(f"summary: the model is a Module, got {type(model).__name__}; wrap a function in nn.Lambda")
    options = {"state": state, "key": key, "training": training}
    arguments = _Arguments(model, inputs, {**kwargs, **{n: v for n, v in options.items() if n in model.takes and v is not None}})
    record = _Record()

    def call(model: Module, *arrays: Any) -> Any:
        out = arguments.call(_recording(model, "", record), arrays)
        return out[0] if "state" in model.takes else out

    program, output = make_jaxpr(call, return_shape=True)(model, *arguments.arrays)
    flops = record.flops(program)
    rows = []
    for path, layer in record.layers.items():
        if path:
            out = record.outputs.get(path)
            rows.append(SummaryRow(path, _title(layer), out, parameter_count(layer), flops[path], _bytes(layer) + _bytes(out)))
    return Summary(type(model).__name__, tuple(rows), output, parameter_count(model), _bytes(model), arguments.state_bytes, flops[""])


class _Arguments:
    """The arguments of a call: `arrays`, which are traced, and others as they are."""

    def __init__(self, model: Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        name = type(model).__name__
        for value in inputs:
            if type(value) is tuple and value and all(type(size) is int for size in value):
                raise ArgumentTypeError(
                    f"summary: an input is an array or its type, as ShapeDtypeStruct({value}, 'float32'), got its shape"
                )
        declared = signature(type(model).__call__)
        try:
            bound = declared.bind(model, *inputs, **options).arguments
        except TypeError as error:
            if str(error).endswith("'state'"):
                apply(model, None)  # which says how state is passed
            raise ArgumentTypeError(
                f"summary: {error}, for the call of {name}, whose arguments are {', '.join(list(declared.parameters)[1:])}. "
                "Inputs follow the model: summary(model, x, y, mask=mask)"
            ) from None
        self.leaves, self.structure = tree.flatten((inputs, options))
        self.positions = [i for i, leaf in enumerate(self.leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
        self.arrays = [self.leaves[i] for i in self.positions]
        self.state_bytes = _bytes(bound.get("state")) if "state" in model.takes else 0

    def call(self, model: Any, arrays: tuple[Any, ...]) -> Any:
        """Call the model with other arrays in place of those."""
        leaves = list(self.leaves)
        for position, array in zip(self.positions, arrays, strict=True):
            leaves[position] = array
        inputs, options = tree.unflatten(self.structure, leaves)
        return model(*inputs, **options)


class _Record:
    """The layers of a model by path, outer before inner ones, and their outputs."""

    def __init__(self) -> None:
        self.layers: dict[str, Module] = {}
        self.outputs: dict[str, Any] = {}
        #: The names of the layers' blocks, and their paths.
        self.blocks: dict[str, str] = {}

    @contextmanager
    def block(self, path: str) -> Iterator[None]:
        """Give the equations of a layer its name."""
        name, outer = f"layer {path.replace('/', ':')}", current_scope.get()
        self.blocks[name] = path
        token = current_scope.set(f"{outer}/{name}" if outer else name)
        try:
            yield
        finally:
            current_scope.reset(token)

    def flops(self, program: ClosedJaxpr) -> dict[str, int]:
        """Return the operations of each layer by its path, those of layers in it included."""
        totals = dict.fromkeys(self.layers, 0)
        self._add(program, "", 1, totals)
        return totals

    def _add(self, program: ClosedJaxpr, outer: str, times: int, totals: dict[str, int]) -> None:
        """Add the operations of a program that the layer `outer` runs so many times."""
        for eqn in program.eqns:
            path, programs = self._layer_of(eqn, outer), sub_jaxprs(eqn.params)
            if eqn.primitive is cond_p:
                programs = [max(programs, key=lambda branch: cost_of(branch)["flops"])]
            for inner in programs:
                self._add(inner, path, times * int(eqn.params.get("length", 1)), totals)
            if not programs:
                for holder in self._holders(path):
                    totals[holder] += times * operations_of(eqn)

    def _layer_of(self, eqn: Equation, outer: str) -> str:
        """Return the path of an equation's layer: `outer`, or one in it.

        Programs of jitted functions are kept, with the names of the layer that called them first.
        """
        names = [] if eqn.source is None else eqn.source.scope.split("/")
        path = next((self.blocks[name] for name in reversed(names) if name in self.blocks), "")
        return path if path.startswith(f"{outer}." if outer else "") else outer

    def _holders(self, path: str) -> list[str]:
        """Return a layer's path, and those of the layers that hold it."""
        names = path.split(".") if path else []
        paths = [".".join(names[:count]) for count in range(len(names) + 1)]
        return [holder for holder in paths if holder in self.layers]


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
            with self._record.block(self._path):
                out = cls.__call__(self, *args, **kwargs)
            output = out[0] if "state" in self.takes else out
            self._record.outputs[self._path] = tree.map(lambda leaf: ShapeDtypeStruct(leaf.shape, leaf.dtype), output)
            return out

        members["__call__"] = call
    return type(cls.__name__, (cls,), members)


def _bytes(value: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree.leaves(value))


def _title(layer: Module) -> str:
    name = type(layer).__name__
    return f"{name}({getattr(layer.function, '__name__', '…')})" if isinstance(layer, Lambda) else name


def _text(output: Any) -> str:
    return "not called" if output is None else describe(output)
