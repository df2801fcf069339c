"""Weakly typed values in full, for conversions to 64-bit dtypes.

A Python float is 64 bits wide, but the weakly typed array that stands for it is a float32, the default of its kind. Where that meets a
64-bit dtype, widening it would keep the rounding. So an array made of Python numbers alone keeps its number (`core.array.with_number`),
and a traced program takes the number in full instead: from an input of 64 bits that `in_full` adds (`core.staging.trace_to_jaxpr` tells
its caller), repeating the arithmetic since then in 64 bits. Programs of 32 bits stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import JaxprTrace, JaxprTracer

#: Primitives of one operand that move its elements or repeat them.
_MOVEMENT = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "rev"})

Convert = Callable[[Any, np.dtype, bool], Array]


def keeps_number(primitive: Primitive) -> bool:
    """Return True if all elements of the result are equal where the operands' are."""
    return primitive.arity > 0 or primitive.name in _MOVEMENT


def in_full(value: Array, convert: Convert) -> Array:
    """Return a weakly typed value in 64 bits if it is traced and known, else itself.

    `convert` is `convert_element_type`, which calls this function.
    """
    if type(value) is not JaxprTracer or value.dtype not in dtypes.FULL:
        return value
    trace = value._trace
    if type(trace) is not JaxprTrace or not trace.alive:
        return value
    found = _variable(trace, value._var, convert)
    return value if found is None else JaxprTracer(trace, found)


def _variable(trace: JaxprTrace, var: Var, convert: Convert) -> Var | None:
    """Return the variable of the same number in 64 bits, or None if there is none."""
    if var not in trace.full:
        eqn = trace.weak.get(var)
        trace.full[var] = trace.full_input(var, dtypes.FULL[var.aval.dtype]) if eqn is None else _repeated(trace, eqn, convert)
    return trace.full[var]


def _repeated(trace: JaxprTrace, eqn: Equation, convert: Convert) -> Var | None:
    """Record an equation once more, of its operands in 64 bits; return its result."""
    primitive, full = eqn.primitive, dtypes.FULL[eqn.outvars[0].aval.dtype]
    if not keeps_number(primitive) and primitive.name not in ("select_n", "convert_element_type"):
        return None
    params = {**eqn.params, "new_dtype": full} if "new_dtype" in eqn.params else eqn.params
    return trace.process(primitive, [_operand(trace, atom, convert) for atom in eqn.invars], params)._var


def _operand(trace: JaxprTrace, atom: Atom, convert: Convert) -> Array:
    value = atom.val if isinstance(atom, Literal) else trace.value(atom)
    dtype = value.dtype
    return convert(value, dtypes.FULL[dtype], True) if dtype in dtypes.FULL and value.weak_type else value
