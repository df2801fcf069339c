"""Elementwise primitives by name, in WGSL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.formulas.complex_numbers import COMPLEX, Complex, ComplexFormula
from volta_fn.primitives.formulas.floats import EXACT
from volta_fn.targets.wgsl.scalars import floats, integers
from volta_fn.targets.wgsl.scalars.convert import bitcast, convert
from volta_fn.targets.wgsl.scalars.halves import rounded
from volta_fn.targets.wgsl.scalars.number import BFLOAT16, FLOAT16, Number, is_supported, kind, wgsl_type
from volta_fn.targets.wgsl.scalars.values import Lanes, outlined
from volta_fn.targets.wgsl.text import Function

#: As formulas have them, but for comparisons, which compilers take to hold between a number and itself.
_COMPLEX: dict[str, ComplexFormula] = {
    **COMPLEX,
    "eq": lambda x, y: floats.equal("==")(x.re, y.re) & floats.equal("==")(x.im, y.im),
    "minus_itself": lambda x: Complex(*[floats.FLOAT["sub"](component, component) for component in x]),
    "ne": lambda x, y: ~(floats.equal("==")(x.re, y.re) & floats.equal("==")(x.im, y.im)),
}

_INTEGRAL = {"bool": integers.BOOL, "int": integers.INT, "uint": integers.UINT}

#: Where a literal operand would be simplified as if the other one were finite.
_COMPLEX_UNSAFE = ("mul", "div", "pow")

#: What Mesa's compiler has wrong even if one operand alone is a literal: the remainder of inf by 0.0, that of 0.0 by NaN.
_UNSAFE = ("rem",)


def supports(op: str, in_dtypes: Sequence[np.dtype], params: Mapping[str, Any], device: TargetCapabilities) -> bool:
    """Return True if `apply` can write the primitive for these dtypes on a device."""
    if not all(is_supported(dtype, device) for dtype in in_dtypes):
        return False
    if op in _SPECIAL:
        if op == "bitcast_convert_type":
            return params["new_dtype"].itemsize == in_dtypes[0].itemsize and is_supported(params["new_dtype"], device)
        return op != "convert_element_type" or is_supported(params["new_dtype"], device)
    if in_dtypes[0].kind == "c":
        return op in _COMPLEX
    return _operation(op, in_dtypes[0]) is not None


@cache
def _operation(op: str, dtype: np.dtype) -> Callable[..., Any] | None:
    if kind(dtype) != "float":
        integral = _INTEGRAL[kind(dtype)].get(op)
        return integral and partial(integral, dtype)
    formula = PRIMITIVES[op].formula
    if formula is not None:
        return partial(outlined, op, formula)
    return {FLOAT16: floats.HALF, BFLOAT16: floats.BRAIN}.get(dtype, floats.FLOAT).get(op)


def apply(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Apply an elementwise primitive that `supports` accepts; return `dtype`."""
    if op in _UNSAFE or all(x.value is not None for x in operands):
        operands = [x if x.value is None else unknown(f, x) for x in operands]
    special = _SPECIAL.get(op)
    if special is not None:
        return special(f, operands, dtype)
    before = operands[0].dtype
    if before.kind == "c":
        if op in _COMPLEX_UNSAFE:
            operands = [x if x.value is None else unknown(f, x) for x in operands]
        elif op == "sub" and operands[0].text == operands[1].text:
            op, operands = "minus_itself", operands[:1]
        return _apply_complex(f, op, operands, dtype, params)
    lanes = [Lanes(f, x.type, x.text).unknown() for x in operands]
    if op == "rem" and before.kind == "f" and lanes[0].text == lanes[1].text:
        lanes[1] = lanes[1].held()  # NVIDIA's compiler takes the remainder of a number by itself for 0
    operation = _operation(op, before)
    assert operation is not None, f"{op} is not supported for {before}"
    result = operation(*lanes, **params)
    exact = op in EXACT or dtype not in (FLOAT16, BFLOAT16)
    return Number(dtype, result.text if exact else rounded(f, result.text, dtype))


def _apply_complex(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Apply a complex operation, which is a function of the module."""
    before, after = operands[0].type, wgsl_type(dtype)

    def body(inner: Function) -> tuple[str, str]:
        components = [[Lanes(inner, before[5:-1], f"a{k}.{c}") for c in "xy"] for k in range(len(operands))]
        result = _COMPLEX[op](*[Complex(*p) for p in components], **params)
        return after, f"{after}({result.re.text}, {result.im.text})" if isinstance(result, Complex) else result.text

    suffix = "".join(f"_{v}".replace("-", "minus_") for v in params.values())
    name = f.function(f"complex_{op}{suffix}_{before[5:-1]}", [before] * len(operands), body)
    return Number(dtype, f.let(after, f"{name}({', '.join(x.text for x in operands)})"))


def unknown(f: Function, x: Number) -> Number:
    """Return a literal as a number that compilers do not know.

    naga computes what follows from literals alone, and refuses what it cannot (the root of -1, a float64 without its sign); Mesa's
    compiler adds known numbers first, and so loses what the rounding of a sum with one of them is to tell.
    """
    if x.type == "bool":
        return x
    if x.type[0] in "iu":
        return Number(x.dtype, f.let(x.type, x.text))
    if x.dtype.kind != "c":
        return Number(x.dtype, Lanes.unknown_number(f, x.type, x.value).text)
    components = [Lanes.unknown_number(f, x.type[5:-1], component).text for component in (x.value.real, x.value.imag)]
    return Number(x.dtype, f.let(x.type, f"{x.type}({components[0]}, {components[1]})"))


def unknown_float(f: Function, x: Number) -> Number:
    """Return a literal float, one of several choices, as an unknown number.

    Where compilers know that a zero is chosen, they take its product with NaN for 0.
    """
    return unknown(f, x) if x.value is not None and kind(x.dtype) in ("float", "complex") else x


def _select_n(f: Function, operands: Sequence[Number], dtype: np.dtype) -> Number:
    which, *cases = operands
    cases = [unknown_float(f, case) for case in cases]
    if which.dtype == np.bool_:
        return _chosen(f, which.text, cases[-1], cases[0])
    result = cases[0]
    for k, case in enumerate(cases[1:], 1):
        result = _chosen(f, f"{which.text} >= {k}i", case, result)
    return result


def _chosen(f: Function, condition: str, yes: Number, no: Number) -> Number:
    return Number(yes.dtype, f.let(yes.type, f"select({no.text}, {yes.text}, {condition})"))


_SPECIAL: dict[str, Callable[[Function, Sequence[Number], np.dtype], Number]] = {
    "select_n": _select_n,
    "convert_element_type": lambda f, x, dtype: convert(f, x[0], dtype),
    "complex": lambda f, x, dtype: Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({x[0].text}, {x[1].text})")),
    "bitcast_convert_type": lambda f, x, dtype: bitcast(f, x[0], dtype),
}


#: A number and where it is: what argmax and argmin combine.
Indexed = tuple[Number, Number]


def combine(f: Function, reduction: Reduction, x: Number, y: Number) -> Number:
    """Combine two numbers, as a step of a reduction.

    NaN wins against anything in maxima and minima.
    """
    return apply(f, reduction.step, (x, y), x.dtype, {})


def combine_indexed(f: Function, reduction: Reduction, x: Indexed, y: Indexed) -> Indexed:
    """Return the number that wins a step of ``argmax`` or ``argmin``, and its index.

    Of equal ones, and of NaNs, the first wins.
    """
    a, b = [Lanes(f, number.type, number.text) for number, _ in (x, y)]
    first = Lanes(f, y[1].type, y[1].text).below(Lanes(f, x[1].type, x[1].text))
    if kind(x[0].dtype) == "bool":
        better = ~a & b if reduction.step == "max" else a & ~b
        tie = ~(a ^ b)
    else:
        better, tie = b.above(a) if reduction.step == "max" else b.below(a), a.equals(b)
    if kind(x[0].dtype) == "float":
        a_nan, b_nan = a.is_nan(), b.is_nan()
        better, tie = better | (b_nan & ~a_nan), tie | (a_nan & b_nan)
    wins = (better | (tie & first)).text
    chosen = [Number(p.dtype, f.let(p.type, f"select({p.text}, {q.text}, {wins})")) for p, q in zip(x, y, strict=True)]
    return chosen[0], chosen[1]
