"""Elementwise primitives by name, in machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.formulas import floats
from volta_fn.primitives.formulas.complex_numbers import COMPLEX, Complex
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64
from volta_fn.targets.cpu.scalars import integers
from volta_fn.targets.cpu.scalars.convert import bitcast, convert
from volta_fn.targets.cpu.scalars.integers import Operation
from volta_fn.targets.cpu.scalars.number import BFLOAT16, FLOAT16, Number, components_of, counting, is_supported, kind, rounded
from volta_fn.targets.cpu.scalars.values import Lanes, inlined

_REAL: dict[str, Mapping[str, Operation]] = {"bool": integers.BOOL, "int": integers.INT, "uint": integers.UINT, "float": floats.FLOAT}


def supports(op: str, in_dtypes: Sequence[np.dtype], params: Mapping[str, Any]) -> bool:
    """Return True if `apply` can write the primitive for these dtypes."""
    if not all(map(is_supported, in_dtypes)):
        return False
    if op in _SPECIAL:
        if op == "bitcast_convert_type":
            return params["new_dtype"].itemsize == in_dtypes[0].itemsize and is_supported(params["new_dtype"])
        return op != "convert_element_type" or is_supported(params["new_dtype"])
    if in_dtypes[0].kind == "c":
        return op in COMPLEX
    return _operation(op, in_dtypes[0]) is not None


def _operation(op: str, dtype: np.dtype) -> Operation | None:
    formula = PRIMITIVES[op].formula
    if kind(dtype) == "float" and formula is not None:
        return partial(inlined, op, formula)
    if dtype == FLOAT16:
        return floats.HALF.get(op)
    found = _REAL.get(kind(dtype), {}).get(op)
    if found is None and dtype in (np.float32, np.float64):
        return floats.NATIVE_ONLY.get(op)
    return found


def apply(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Apply an elementwise primitive that `supports` accepts; return `dtype`."""
    special = _SPECIAL.get(op)
    if special is not None:
        return special(f, operands, dtype)
    if operands[0].dtype.kind == "c":
        answer = COMPLEX[op](*[Complex(*components_of(f, x)) for x in operands], **params)
        return Number(dtype, (answer.re.value, answer.im.value) if isinstance(answer, Complex) else (answer.value,))
    operation = _operation(op, operands[0].dtype)
    assert operation is not None, f"{op} is not supported for {operands[0].dtype}"
    result = operation(*[Lanes(f, x.value) for x in operands], **params)
    if op not in floats.EXACT and dtype in (FLOAT16, BFLOAT16):
        result = rounded(result, dtype)
    return Number(dtype, (result.value,))


def _select_n(f: Function, operands: Sequence[Number], dtype: np.dtype) -> Number:
    which, *cases = operands
    if which.dtype == np.bool_:
        return _chosen(f, which.value, cases[-1], cases[0])
    number = Lanes(f, which.value)
    result = cases[0]
    for k, case in enumerate(cases[1:], 1):
        result = _chosen(f, number.compare("sge", k).value, case, result)
    return result


def _chosen(f: Function, condition: Value, yes: Number, no: Number) -> Number:
    return Number(yes.dtype, tuple([f.select(condition, a, b) for a, b in zip(yes.components, no.components, strict=True)]))


_SPECIAL: dict[str, Callable[[Function, Sequence[Number], np.dtype], Number]] = {
    "select_n": _select_n,
    "convert_element_type": lambda f, x, dtype: convert(f, x[0], dtype),
    "complex": lambda f, x, dtype: Number(dtype, (x[0].value, x[1].value)),
    "bitcast_convert_type": lambda f, x, dtype: bitcast(f, x[0], dtype),
}


def position(f: Function, base: Value, step: int, dtype: np.dtype, lanes: int) -> Number:
    """Return the integers base + k step in lanes k = 0, 1, …, as `dtype`."""
    if dtype.kind in "iu":
        type_ = f"i{8 * dtype.itemsize}"
        first = Lanes(f, f.splat(f.cast("trunc", base, type_), lanes))
        return Number(dtype, ((first + counting(f, type_, lanes) * step).value,))
    wide = Lanes(f, f.splat(base, lanes)) + counting(f, "i64", lanes) * step
    return convert(f, Number(np.dtype(np.int64), (wide.value,)), dtype)


def combine(f: Function, reduction: Reduction, x: Number, y: Number) -> Number:
    """Combine lane by lane, as a step of a reduction.

    NaN wins against anything in maxima and minima.
    """
    return apply(f, reduction.step, (x, y), x.dtype, {})


def horizontal(f: Function, reduction: Reduction, x: Number) -> Number:
    """Combine the lanes, a power of two of them, by halves."""
    while x.lanes > 1:
        half = x.lanes // 2
        x = combine(f, reduction, _taken(f, x, 0, half), _taken(f, x, half, half))
    return x


def _taken(f: Function, x: Number, start: int, count: int) -> Number:
    if count == 1:
        element = [f.let(element_of(p.type), f"extractelement {p}, {i64(start)}") for p in x.components]
        return Number(x.dtype, tuple(element))
    return Number(x.dtype, tuple([Lanes(f, p).taken(range(start, start + count)).value for p in x.components]))
