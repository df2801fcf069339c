"""Weakly typed scalars of traced programs in full, for conversions to 64-bit dtypes.

A Python float is 64 bits wide, but the weakly typed scalar that stands for it in a program is a float32, the default of its kind. Where
such a scalar meets a 64-bit dtype, widening it would keep the rounding. `in_full` takes the number in full instead: from an input of
64 bits that it adds to the program (`core.staging.trace_to_jaxpr` tells its caller), and it records the scalar arithmetic since then
once more, in 64 bits. Programs of 32 bits stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var
from volta_fn.core.staging import JaxprTrace, JaxprTracer

#: The dtypes of weakly typed scalars that may be rounded, and those that hold the numbers in full.
FULL = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(np.complex128)}

#: Primitives, besides the elementwise ones, that are recorded once more.
_OTHERS = frozenset({"select_n", "convert_element_type"})

Convert = Callable[[Any, np.dtype, bool], Array]


def in_full(value: Array, convert: Convert) -> Array:
    """Return a weakly typed scalar in 64 bits if it is traced and known in full, else itself.

    `convert` is `convert_element_type`, which calls this function.
    """
    if type(value) is not JaxprTracer or value.dtype not in FULL:
        return value
    trace = value._trace
    if type(trace) is not JaxprTrace or not trace.alive:
        return value
    found = _variable(trace, value._var, convert)
    return value if found is None else JaxprTracer(trace, found)


def _variable(trace: JaxprTrace, var: Var, convert: Convert) -> Var | None:
    """Return the variable of the same number in 64 bits, or None if there is none."""
    if var not in trace.full:
        eqn = trace.scalars.get(var)
        trace.full[var] = trace.full_input(var, FULL[var.aval.dtype]) if eqn is None else _repeated(trace, eqn, convert)
    return trace.full[var]


def _repeated(trace: JaxprTrace, eqn: Equation, convert: Convert) -> Var | None:
    """Record an equation once more, of its operands in 64 bits; return its result."""
    primitive, full = eqn.primitive, FULL[eqn.outvars[0].aval.dtype]
    if not primitive.arity and primitive.name not in _OTHERS:
        return None
    params = {**eqn.params, "new_dtype": full} if "new_dtype" in eqn.params else eqn.params
    return trace.process(primitive, [_operand(trace, atom, convert) for atom in eqn.invars], params)._var  # type: ignore[no-any-return]


def _operand(trace: JaxprTrace, atom: Atom, convert: Convert) -> Array:
    value = atom.val if isinstance(atom, Literal) else trace.value(atom)
    dtype = value.dtype
    return convert(value, FULL[dtype], True) if dtype in FULL and value.weak_type else value
