"""Elementwise operations as instructions, and their estimated costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from volta_fn.codegen import scalars
from volta_fn.codegen.scalars import BOOL, Integers, Operation, kind
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.formulas import exponential
from volta_fn.primitives.formulas.complex_numbers import COMPLEX, Complex
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, element_of, i64
from volta_fn.targets.cpu.scalars.number import (
    BFLOAT16,
    FLOAT16,
    Number,
    bitcast,
    components_of,
    convert,
    counting,
    is_supported,
    rounded,
)
from volta_fn.targets.cpu.scalars.values import Lanes, inlined, overload

# Estimated costs of operations, for scheduling and recomputation.

#: Measured cycles per vector of 512 bits of float32; a formula that is not listed takes a cycle an instruction, about.
_CYCLES = {
    "div": 10.0, "rem": 15.0, "sqrt": 12.0, "rsqrt": 22.0, "cbrt": 100.0, "pow": 80.0, "exp": 9.0, "exp2": 9.0, "expm1": 11.0, "log": 10.0,
    "log2": 10.0, "log1p": 18.0, "logistic": 15.0, "tanh": 15.0, "sinh": 18.0, "cosh": 15.0, "asinh": 110.0, "acosh": 90.0, "atanh": 70.0,
    "sin": 11.0, "cos": 11.0, "tan": 20.0, "asin": 14.0, "acos": 14.0, "atan": 14.0, "atan2": 20.0, "erf": 17.0, "erfc": 24.0,
    "erf_inv": 45.0, "erf_inv_of_uniform": 28.0, "ndtr": 14.0, "gelu": 14.0,
    "lgamma": 200.0, "digamma": 300.0, "bessel_i0e": 60.0, "bessel_i1e": 60.0,
    "threefry2x32_word": 27.0, "philox4x32_word": 250.0, "logaddexp": 35.0,
}  # fmt: skip


def cost(op: str, in_dtypes: Sequence[np.dtype]) -> float:
    """About how many nanoseconds an operation takes for an element, on one thread."""
    dtype = in_dtypes[-1]
    width = max(dtype.itemsize, 4) if dtype.kind in "fcV" else dtype.itemsize
    scale = 3.0 if dtype.kind == "c" else 1.5 if width == 8 and op in _CYCLES else 1.0
    return (_CYCLES.get(op) or _instructions(op)) * scale * width / host().vector_bytes / 3.0


@cache
def _instructions(op: str) -> float:
    """About how many instructions a formula is."""
    formula = PRIMITIVES[op].formula
    if formula is None:
        return 1.0
    module = Module()
    f = Function(module, "f", [Value("float", f"%x{k}") for k in range(PRIMITIVES[op].arity)])
    inlined(op, formula, *[Lanes(f, x) for x in f.parameters])
    return float(str(module).count(" = "))


# Integers, by the operations of `codegen.scalars`.


class MachineIntegers(Integers):
    """Operations of integers of a dtype, each in a lane of its size."""

    def quotient(self, x: Lanes, y: Lanes) -> Lanes:
        """Return x / y rounded toward zero, for y other than 0."""
        if self.signed:
            least = 1 << (x.bits - 1)
            y = (x.equals(least) & y.equals(-1)).select(1, y)
        if x.bits == 64:
            return x.new(x.f.binary("sdiv" if self.signed else "udiv", x.value, y.value))
        # The float quotient, rounded, never reaches the next whole number: numerators have fewer bits than the float by far.
        sign, element = "s" if self.signed else "u", "double" if x.bits == 32 else "float"
        wide = x.cast(f"{sign}itofp", element) / y.cast(f"{sign}itofp", element)
        return wide.cast(f"fpto{sign}i", f"i{x.bits}")

    def power(self, x: Lanes, y: Lanes) -> Lanes:
        """Square again and again, up to the highest bit of any lane's exponent."""
        f = x.f

        def body(_: Value, carried: list[Value]) -> list[Value]:
            result, square, left = [x.new(v) for v in carried]
            odd = (left & 1).compare("ne", 0)
            return [odd.select(result * square, result).value, (square * square).value, left.shift_right(1).value]

        largest = y if y.lanes == 1 else y.new(f.intrinsic(f"llvm.vector.reduce.umax.{overload(y.type)}", element_of(y.type), y.value))
        length = f.cast("zext", (largest.like(y.bits) - self.leading_zeros(largest)).value, "i64")
        return x.new(f.loop(i64(0), length, 1, [x.like(1).value, x.value, y.value], body)[0])

    def population_count(self, x: Lanes) -> Lanes:
        """Return how many bits are 1."""
        return x.intrinsic("ctpop")

    def leading_zeros(self, x: Lanes) -> Lanes:
        """Return how many bits precede the highest 1."""
        return x.new(x.f.intrinsic(f"llvm.ctlz.{overload(x.type)}", x.type, x.value, Value("i1", "false")))


@cache
def _integers(dtype: np.dtype) -> dict[str, Operation]:
    return MachineIntegers(dtype).operations()


# Elementwise primitives by name, in machine code.


def supports(op: str, in_dtypes: Sequence[np.dtype], params: Mapping[str, Any]) -> bool:
    """Return True if `apply` can write the primitive for these dtypes."""
    return scalars.supports(op, in_dtypes, params, is_supported, COMPLEX, _operation)


def _operation(op: str, dtype: np.dtype) -> Operation | None:
    category = kind(dtype)
    if category != "float":
        return (BOOL if category == "bool" else _integers(dtype)).get(op)
    formula = PRIMITIVES[op].formula
    if formula is not None:
        return partial(inlined, op, formula)
    table = exponential.HALF if dtype == FLOAT16 else exponential.FLOAT
    return table.get(op) or (exponential.NATIVE_ONLY.get(op) if dtype in (np.float32, np.float64) else None)


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
    if op not in exponential.EXACT and dtype in (FLOAT16, BFLOAT16):
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
        x = combine(f, reduction, _lane_range(f, x, 0, half), _lane_range(f, x, half, half))
    return x


def _lane_range(f: Function, x: Number, start: int, count: int) -> Number:
    if count == 1:
        element = [f.let(element_of(p.type), f"extractelement {p}, {i64(start)}") for p in x.components]
        return Number(x.dtype, tuple(element))
    return Number(x.dtype, tuple([Lanes(f, p).shuffle(range(start, start + count)).value for p in x.components]))
