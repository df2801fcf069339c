"""Lowering rules of primitives, by the names of `jax.interpreters.mlir` and `xla`.

There is no MLIR here: a rule is a function of other primitives, which compilers inline. `lower_fun` makes one of a Python function. Rules
that call `emit_python_callback` run, too; those that build operations of a dialect need `ir`, which raises `LoweringError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

import numpy as np

from volta_fn.core.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.primitive import Primitive as CorePrimitive
from volta_fn.core.trace import bind
from volta_fn.errors import LoweringError
from volta_fn.extend.primitive import LoweringContext as LoweringContext
from volta_fn.extend.primitive import Primitive, Rule
from volta_fn.primitives.callbacks import pure_callback

LoweringRuleContext = LoweringContext
LoweringRule = Callable[..., Any]
#: Handlers by which JAX's libraries let other types pass as arrays; none are asked here: `__jax_array__` makes an object pass.
canonicalize_dtype_handlers: dict[type, Callable[..., Any]] = {np.ndarray: as_value}
pytype_aval_mappings: dict[type, Callable[..., Any]] = {np.ndarray: aval_of}
ir_type_handlers: dict[type, Callable[..., Any]] = {}
global_result_handlers: dict[type, Callable[..., Any]] = {}


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Rule:
    """Return the lowering rule that inlines a function of arrays."""

    def rule(context: LoweringContext, /, *operands: Any, **params: Any) -> list[Any]:
        result = fun(*operands, **params)
        return list(result) if multiple_results else [result]

    return rule


def register_lowering(prim: CorePrimitive, rule: Rule | None = None, platform: str | None = None, **options: Any) -> Any:
    """Set how a user's primitive becomes code: `rule(context, *operands, **params)`.

    A rule for one platform alone is kept only if there is no other. Without `rule` it returns a decorator. Raises `LoweringError` for a
    primitive of this package, whose code its targets make.
    """
    if rule is None:
        return lambda rule: register_lowering(prim, rule, platform)
    if not issubclass(type(prim), Primitive):
        raise LoweringError(f"register_lowering: {prim} is a primitive of volta_fn, for which its targets have code; define a new one")
    primitive = cast(Primitive, prim)
    if platform is None or primitive.lowering is None:
        primitive.lowering = rule
    return rule


def emit_python_callback(
    context: LoweringContext,
    callback: Callable[..., Any],
    token: Any,
    operands: Sequence[Array],
    operand_avals: Sequence[ShapedArray],
    result_avals: Sequence[ShapedArray],
    *,
    has_side_effect: bool = False,
    **options: Any,
) -> tuple[Sequence[Array], Any, Any]:
    """Call a Python function of NumPy arrays; return results, token and what to keep."""
    types = tuple(ShapeDtypeStruct(a.shape, a.dtype) for a in result_avals)
    return pure_callback(lambda *xs: tuple(callback(*xs)), types, *operands), token, None


def apply_primitive(prim: CorePrimitive, /, *args: Array, **params: Any) -> Any:
    """Apply a primitive, under the current trace."""
    return bind(prim, *args, **params)


class _NoDialect:
    """Stands for MLIR's modules: any use raises `LoweringError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LoweringError(
            f"{self._name}.{name}: lowering rules are functions of other primitives here, not of MLIR; use mlir.lower_fun of a function"
        )


ir, hlo = _NoDialect("mlir.ir"), _NoDialect("mlir.hlo")
