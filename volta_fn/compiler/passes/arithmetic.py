"""Rules of arithmetic that hold to the last bit.

The sign of zero decides much: x - 0 is x for every float, and so is x + (-0.0), but x + 0.0 is 0.0 for -0.0. Multiplying by one keeps
every float as it is, but not an infinite complex number, of which NumPy makes NaN.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.rewriting import Rewriter, Table, literal, rule
from volta_fn.core.jaxpr import Atom, Equation

RULES: Table = {}

_SINGLE_OR_DOUBLE = frozenset([np.dtype(np.float32), np.dtype(np.float64)])


def _is(program: Rewriter, atom: Atom, wanted: float) -> bool:
    """Return True if all elements of the atom have this value; zeros, this sign."""
    value = program.scalar(atom)
    if value is None or value != wanted:
        return False
    if value.dtype not in dtypes.INEXACT:
        return True
    number = complex(value.item())
    sign = math.copysign(1.0, wanted)
    return all(x != 0 or math.copysign(1.0, x) == sign for x in (number.real, *([number.imag] if value.dtype.kind == "c" else [])))


def _other_than(program: Rewriter, eqn: Equation, unit: float) -> Atom | None:
    """Return the operand of a commutative operation whose other operand is `unit`."""
    x, y = eqn.invars
    if _is(program, y, unit):
        return program.fitted(eqn, x)
    return program.fitted(eqn, y) if _is(program, x, unit) else None


@rule(RULES, "mul")
def times_one(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x * 1 to x (for bool: x and True)."""
    return None if eqn.outvars[0].aval.dtype in dtypes.COMPLEX else _other_than(program, eqn, 1)


@rule(RULES, "add")
def plus_zero(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x + (-0.0) to x for floats and complex numbers, x + 0 for integers."""
    return _other_than(program, eqn, -0.0)


@rule(RULES, "sub")
def minus_zero(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x - 0 to x; for floats and complex numbers a zero of positive sign."""
    x, y = eqn.invars
    return program.fitted(eqn, x) if _is(program, y, 0.0) else None


@rule(RULES, "div")
def divided_by_power_of_two(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x / 1 to x, and x / 2^n to x * 2^-n for floats.

    Both are the rounding of the same number.
    """
    x, y = eqn.invars
    dtype = x.aval.dtype
    if dtype in dtypes.COMPLEX or (value := program.scalar(y)) is None:
        return None
    if value == 1:
        return program.fitted(eqn, x)
    if dtype not in dtypes.FLOATS or not np.isfinite(value):
        return None
    info, number = dtypes.finfo(dtype), float(value)
    if abs(math.frexp(number)[0]) != 0.5 or not min(abs(number), 1 / abs(number)) >= float(info.smallest_normal):
        return None
    return program.fitted(eqn, program.emit(eqn, "mul", x, literal(1 / number, dtype)))


@rule(RULES, "add", "sub")
def with_a_negative(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x + -y to x - y, -x + y to y - x, and x - -y to x + y."""
    x, y = eqn.invars
    adding = eqn.primitive.name == "add"
    if (negated := program.producer(y, "neg")) is not None:
        return program.emit(eqn, "sub" if adding else "add", x, negated.invars[0])
    if adding and (negated := program.producer(x, "neg")) is not None:
        return program.emit(eqn, "sub", y, negated.invars[0])
    return None


@rule(RULES, "mul", "div")
def of_two_negatives(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite -x * -y to x * y and -x / -y to x / y for floats."""
    first, second = (program.producer(v, "neg") for v in eqn.invars)
    if first is None or second is None or eqn.outvars[0].aval.dtype not in dtypes.FLOATS:
        return None
    return program.emit(eqn, eqn.primitive.name, first.invars[0], second.invars[0])


@rule(RULES, "neg", "not", "conj")
def involution(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop an operation that undoes itself."""
    made = program.producer(eqn.invars[0], eqn.primitive.name)
    same = made is not None and made.invars[0].aval.dtype == eqn.outvars[0].aval.dtype
    return made.invars[0] if made is not None and same else None


@rule(RULES, "abs", "floor", "ceil", "round", "round_half_even", "sign")
def idempotent(eqn: Equation, program: Rewriter) -> Atom | None:
    """Drop an operation that changes nothing the second time."""
    if eqn.outvars[0].aval.dtype in dtypes.COMPLEX:
        return None
    return eqn.invars[0] if program.producer(eqn.invars[0], eqn.primitive.name) is not None else None


@rule(RULES, "abs")
def of_a_negative(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite |-x| to |x|, if negatives are negative (not of unsigned integers)."""
    made = program.producer(eqn.invars[0], "neg")
    return None if made is None or eqn.invars[0].aval.dtype in dtypes.UNSIGNED else program.emit(eqn, "abs", made.invars[0])


@rule(RULES, "max", "min", "and", "or")
def of_equals(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite max(x, x) to x, and its like."""
    x, y = eqn.invars
    return x if x is y else None


@rule(RULES, "pow")
def to_a_known_power(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x^c to products, where that is exact.

    That is so for integers, and for floats and the exponents 1, 2 and -1. (Not 1/2: by IEEE 754 the power of -0.0 is 0.0, and the square
    root -0.0.)
    """
    x, y = eqn.invars
    exponent = program.scalar(y)
    if exponent is None or x.aval.shape != eqn.outvars[0].aval.shape:
        return None
    dtype = x.aval.dtype
    if dtype in dtypes.INTEGERS and exponent >= 1:
        return program.emit(eqn, "integer_pow", x, y=int(exponent))
    if dtype in _SINGLE_OR_DOUBLE and x.aval.shape and exponent in (1, 2, -1):
        if exponent < 0:
            return program.emit(eqn, "div", literal(1, dtype), x)
        return program.emit(eqn, "integer_pow", x, y=int(exponent))
    return None


@rule(RULES, "integer_pow")
def square(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite x^1 to x, and x^2 to x * x unless x is complex."""
    (x,), power = eqn.invars, eqn.params["y"]
    if power == 1:
        return x
    return program.emit(eqn, "mul", x, x) if power == 2 and x.aval.dtype not in dtypes.COMPLEX else None


@rule(RULES, "real", "imag")
def of_complex(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite real(complex(a, b)) to a and imag(complex(a, b)) to b."""
    made = program.producer(eqn.invars[0], "complex")
    return None if made is None else program.fitted(eqn, made.invars[eqn.primitive.name == "imag"])


@rule(RULES, "complex")
def complex_of_components(eqn: Equation, program: Rewriter) -> Atom | None:
    """Rewrite complex(real(z), imag(z)) to z."""
    first, second = program.producer(eqn.invars[0], "real"), program.producer(eqn.invars[1], "imag")
    if first is None or second is None or first.invars[0] is not second.invars[0]:
        return None
    return first.invars[0]
