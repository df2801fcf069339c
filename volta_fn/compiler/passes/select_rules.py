"""Rules of conversions, selections, and markers that compute nothing."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.rewriting import Rewriter, Table, rule
from volta_fn.core.jaxpr import Atom, Equation, Literal

RULES: Table = {}


@rule(RULES, "stop_gradient", "name")
def marker(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop markers that only derivatives read."""
    return eqn.invars[0]


@rule(RULES, "convert_element_type")
def converted_to_itself(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop a conversion to the same dtype, or there and back.

    The dtype in between must hold every value.
    """
    (x,) = eqn.invars
    dtype = eqn.params["new_dtype"]
    if x.aval.dtype == dtype:
        return x
    made = program.producer(x, "convert_element_type")
    if made is None or made.invars[0].aval.dtype != dtype or not _holds(x.aval.dtype, dtype):
        return None
    return made.invars[0]


def _holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Return True if `wide` has every value of `narrow`, NaN and both zeros included."""
    if narrow in dtypes.BOOL:
        return True
    if narrow in dtypes.INTEGERS and wide in dtypes.INTEGERS:
        inner, outer = np.iinfo(narrow), np.iinfo(wide)
        return int(outer.min) <= int(inner.min) and int(inner.max) <= int(outer.max)
    if wide not in dtypes.FLOATS:
        return False
    outer_float = dtypes.finfo(wide)
    if narrow in dtypes.INTEGERS:
        return np.iinfo(narrow).bits <= outer_float.nmant + 1 and np.iinfo(narrow).bits <= outer_float.maxexp
    if narrow not in dtypes.FLOATS:
        return False
    inner_float = dtypes.finfo(narrow)
    return inner_float.nmant <= outer_float.nmant and inner_float.nexp <= outer_float.nexp


@rule(RULES, "select_n")
def known_choice(eqn: Equation, program: Rewriter) -> Atom | None:
    """Resolve a choice by a known predicate, of one case, or of equal cases."""
    predicate, *cases = eqn.invars
    if len(cases) == 1 or (type(cases[0]) is not Literal and all(c is cases[0] for c in cases)):
        return program.fitted(eqn, cases[0])
    value = program.scalar(predicate)
    if value is None or not 0 <= int(value) < len(cases):
        return None
    return program.fitted(eqn, cases[int(value)])


@rule(RULES, "select_n")
def by_the_opposite(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite a choice by `not p` to the opposite choice by p."""
    predicate, *cases = eqn.invars
    made = program.producer(predicate, "not")
    if made is None or len(cases) != 2 or predicate.aval.dtype not in dtypes.BOOL:
        return None
    return program.emit(eqn, "select_n", made.invars[0], cases[1], cases[0])
