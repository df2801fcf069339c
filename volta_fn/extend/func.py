"""Functions of a module that is built by operations (`volta_fn.extend.ir`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import eval_jaxpr, trace_to_jaxpr
from volta_fn.extend.ir import Module, current_scope


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
        made = FuncOp(body.__name__, trace_to_jaxpr(lambda *values: list(body(*values)), types, body.__name__))
        if isinstance(scope, Module):
            scope.functions[made.name] = made.program
        return made

    return build


class CallOp:
    """A call of a function that was built."""

    def __init__(self, function: FuncOp, operands: Sequence[Array]) -> None:
        self.results = eval_jaxpr(function.program, *operands)
