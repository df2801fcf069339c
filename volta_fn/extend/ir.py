"""Modules that are built by operations, by the names of MLIR."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import find_device
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import DynamicJaxprTrace, eval_jaxpr, trace_to_jaxpr
from volta_fn.core.trace import current_trace, set_trace
from volta_fn.errors import LoweringError
from volta_fn.jit import jit

# A value is a traced array, a block a program that is being traced, and a module the program of its function `main`. So what
# `volta_fn.extend.stablehlo` and `func` build runs like any other program; its text is a jaxpr with a number, by which `compile_and_load`
# finds the program again.

#: Values of operations.
Value = Array


class _Anything:
    """A placeholder for objects that no jaxpr has: contexts, locations, symbol tables."""

    def __init__(self, *args: Any) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    @classmethod
    def unknown(cls, *args: Any) -> Any:
        """Return one without content."""
        return cls()

    def insert(self, operation: Any) -> None:
        """Accept an operation, which calls it name by themselves."""


class Context(_Anything):
    """A block in which dtypes of 64 bits are what they say, as MLIR has no settings.

    Like these settings it belongs to the process.
    """

    def __enter__(self) -> Context:
        self._narrows = dtypes.canonical(np.dtype(np.float64)) != np.float64
        if self._narrows:
            dtypes.set_width(None)
        return self

    def __exit__(self, *error: object) -> None:
        if self._narrows:
            dtypes.set_width(32)


Location = SymbolTable = OpSharding = GSPMDSharding = _Anything


class IntegerType:
    """Integer dtypes."""

    @staticmethod
    def get_signless(bits: int) -> np.dtype:
        """Return the dtype of so many bits; of one, that of truth values."""
        return np.dtype(bool) if bits == 1 else np.dtype(f"int{bits}")


class F32Type:
    """The dtype float32."""

    @staticmethod
    def get() -> np.dtype:
        """Return the dtype."""
        return np.dtype(np.float32)


class F64Type:
    """The dtype float64."""

    @staticmethod
    def get() -> np.dtype:
        """Return the dtype."""
        return np.dtype(np.float64)


class RankedTensorType:
    """Types of arrays."""

    @staticmethod
    def get(shape: Sequence[int], element_type: Any) -> ShapedArray:
        """Return the type of arrays of a shape and a dtype."""
        return ShapedArray(tuple(shape), element_type)


class DenseElementsAttr:
    """The elements of a constant."""

    @staticmethod
    def get(array: Any, *, type: Any = None, shape: Any = None) -> np.ndarray:
        """Return the elements; `type` and `shape` are those of the array."""
        return np.asarray(array)


class Block:
    """A program that is being built, with arguments of some types."""

    def __init__(self, types: Sequence[ShapedArray]) -> None:
        self._trace = DynamicJaxprTrace(current_trace(), "a block")
        self.arguments = [self._trace.new_input(kind) for kind in types]
        self.results: Sequence[Array] | None = None

    def program(self) -> ClosedJaxpr:
        """Return the finished program."""
        if self.results is None:
            raise LoweringError("a block ended without return_")
        return self._trace.builder.build(self._trace.inputs, [self._trace.atom(as_value(r)) for r in self.results])


class Region:
    """A region of one block: `region.blocks.append(*types)` begins it."""

    def __init__(self) -> None:
        self.block: Block | None = None

    @property
    def blocks(self) -> Region:
        """The region itself, as the list of its blocks."""
        return self

    def append(self, *types: ShapedArray) -> Block:
        """Begin the block."""
        self.block = Block(types)
        return self.block

    def run(self, *operands: Array) -> list[Array]:
        """Apply the block to values."""
        if self.block is None:
            raise LoweringError("an operation's region has no block")
        return eval_jaxpr(self.block.program(), *operands)


class InsertionPoint:
    """Lets operations go to a block, or to a module, while a ``with`` runs."""

    def __init__(self, scope: Any) -> None:
        self.scope = scope

    def __enter__(self) -> InsertionPoint:
        self._scope = _scope.set(self.scope)
        self._before = current_trace()
        if isinstance(self.scope, Block):
            set_trace(self.scope._trace)
        return self

    def __exit__(self, *error: object) -> None:
        set_trace(self._before)
        _scope.reset(self._scope)


_scope: ContextVar[Any] = ContextVar("insertion_point", default=None)


def current_scope() -> Any:
    """Return the block or module that operations go to."""
    return _scope.get()


_modules: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Module:
    """Functions by their names, of which `main` is the program."""

    def __init__(self) -> None:
        self.functions: dict[str, ClosedJaxpr] = {}
        self.number = next(_numbers)
        _modules[self.number] = self

    @classmethod
    def create(cls) -> Module:
        """Make a module without functions."""
        return cls()

    @property
    def body(self) -> Module:
        """The module, which has its functions."""
        return self

    operation = body

    def print(self, *, file: Any = None) -> None:
        """Write the text of `main`."""
        print(f"// module {self.number}\n{self.functions['main']!r}", file=file)


class Executable:
    """A program of buffers."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self._run: Callable[..., Any] = jit(lambda *values: eval_jaxpr(program, *values))

    def execute(self, buffers: Sequence[Array]) -> list[Array]:
        """Run the program."""
        with Context():
            return list(self._run(*buffers))


def compile_and_load(text: str, devices: Sequence[Any] = ()) -> Executable:
    """Compile the module of a text.

    Raises `LoweringError` for a text that no module here printed: MLIR is not parsed.
    """
    number = re.match(r"// module (\d+)\n", text)
    module = _modules.get(int(number[1])) if number else None
    if module is None:
        raise LoweringError("compile_and_load: only texts that a module of volta_fn.extend.ir printed can be compiled, not MLIR")
    return Executable(module.functions["main"])


def batched_device_put(aval: Any, sharding: Any, values: Sequence[Any], devices: Sequence[Any], *flags: Any, **options: Any) -> Array:
    """Put the only value of a list on the only device, in the dtype that it has."""
    (value,), (device,) = values, devices
    with Context():
        return from_host(np.asarray(value), device=find_device(device))


# Functions of a module that is built by operations (`volta_fn.extend.ir`).


class FuncOp:
    """A function that was built: its program."""

    def __init__(self, name: str, program: ClosedJaxpr) -> None:
        self.name, self.program = name, program

    @property
    def func_op(self) -> FuncOp:
        """The function itself."""
        return self


def func(*types: ShapedArray) -> Callable[[Callable[..., Any]], FuncOp]:
    """Return the decorator that builds a function with arguments of some types."""

    def build(body: Callable[..., Any]) -> FuncOp:
        scope = current_scope()
        operation = FuncOp(body.__name__, trace_to_jaxpr(lambda *values: list(body(*values)), types, body.__name__))
        if isinstance(scope, Module):
            scope.functions[operation.name] = operation.program
        return operation

    return build


class CallOp:
    """A call of a function that was built."""

    def __init__(self, function: FuncOp, operands: Sequence[Array]) -> None:
        self.results = eval_jaxpr(function.program, *operands)
