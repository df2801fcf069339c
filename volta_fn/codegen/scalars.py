"""Scalar code over printers: folded indices, integers, bool, and sort keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Reduction, reduction_of
from volta_fn.primitives.formulas.ciphers import philox4x32_word, threefry2x32_word
from volta_fn.primitives.formulas.exponential import integer_pow
from volta_fn.primitives.formulas.values import Values

# Index arithmetic with constant folding, written once for all targets.
#
# Values that shapes determine are folded at compile time. `IndexArithmetic` is the printer with which shared code emits indices: a target
# says how it prints a constant and an operation on two indices; what folds to a constant or to an operand is decided here.

V = TypeVar("V")


class IndexArithmetic(ABC, Generic[V]):
    """Arithmetic of non-negative integers: a target's values `V` with Python integers."""

    @abstractmethod
    def index(self, number: int) -> V:
        """Return a constant."""

    @abstractmethod
    def known(self, x: V) -> int | None:
        """Return the number of a constant value, else None."""

    @abstractmethod
    def print_index(self, operator: str, x: V, y: V) -> V:
        """Emit an operation on two indices: ``+``, ``-``, ``*``, ``/`` or ``%``."""

    def named_index(self, x: V) -> V:
        """Give an index a name, so that it is evaluated once."""
        return x

    def sum(self, terms: Iterable[V]) -> V:
        """Emit a sum of terms, each of which is emitted lazily."""
        total = self.index(0)
        for term in terms:
            a, b = self.known(total), self.known(term)
            if a is not None and b is not None:
                total = self.index(a + b)
            elif b != 0:
                total = term if a == 0 else self.print_index("+", total, term)
        return total

    def plus(self, *terms: V) -> V:
        """Emit the sum of values."""
        return self.sum(terms)

    def minus(self, x: V, y: V) -> V:
        """Emit x - y."""
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None:
            return self.index(a - b)
        return x if b == 0 else self.print_index("-", x, y)

    def times(self, x: V, number: int) -> V:
        """Emit x * number."""
        a = self.known(x)
        if a is not None or number == 0:
            return self.index((a or 0) * number)
        return x if number == 1 else self.print_index("*", x, self.index(number))

    def quotient(self, x: V, number: int) -> V:
        """Emit x // number."""
        a = self.known(x)
        if a is not None:
            return self.index(a // number)
        return x if number == 1 else self.print_index("/", x, self.index(number))

    def remainder(self, x: V, number: int) -> V:
        """Emit x % number."""
        a = self.known(x)
        if a is not None or number == 1:
            return self.index((a or 0) % number)
        return self.print_index("%", x, self.index(number))

    def divided(self, x: V, number: int) -> tuple[V, V]:
        """Emit x // number and x % number by one division."""
        quotient = self.quotient(x, number)
        return quotient, self.minus(x, self.times(quotient, number)) if number != 1 else self.index(0)

    def dotted(self, indices: Iterable[V], strides: Iterable[int]) -> V:
        """Emit the sum of indices times strides."""
        return self.sum(self.times(index, stride) for index, stride in zip(indices, strides, strict=True))

    def coordinates(self, number: V, sizes: Sequence[int]) -> list[V]:
        """Emit the coordinates of an element by its number in row-major order."""
        coordinates = []
        for d, size in enumerate(sizes):
            quotient = self.quotient(number, math.prod(sizes[d + 1 :]))
            coordinates.append(self.named_index(self.remainder(quotient, size) if d else quotient))
        return coordinates


# Rows along an axis, and cumulative operations on them.


def row_offset(f: IndexArithmetic[V], row: V, i: V, size: int, columns: int) -> V:
    """Emit the offset of element `i` of a row along an axis.

    The axis has `size` elements; the axes after it have `columns` together.
    """

    def terms() -> Iterator[V]:
        yield f.times(f.quotient(row, columns), size * columns)
        yield f.remainder(row, columns)
        yield f.times(i, columns)

    return f.sum(terms())


class CumulativeOp(NamedTuple):
    """A cumulative operation on an array.

    Attributes:
        name: the name of the primitive.
        reduction: how it combines elements.
        stored: the dtype in memory.
        dtype: the dtype that is accumulated in.
        rows, size, columns: the sizes of the axes before, of, and after the accumulation.
        reverse: whether it begins at the end.
    """

    name: str
    reduction: Reduction
    stored: np.dtype
    dtype: np.dtype
    rows: int
    size: int
    columns: int
    reverse: bool

    @property
    def is_sequential(self) -> bool:
        """True if elements are combined one by one.

        Products of parts of a row might overflow where the result does not.
        """
        return self.reduction.step == "mul" and self.dtype.kind in "fc"

    def position(self, f: IndexArithmetic[V], i: V, width: int = 1) -> V:
        """Emit the position of the i-th element in order, or of the first of `width`."""
        return f.minus(f.index(self.size - width), i) if self.reverse else i


def cumulative_op(name: str, operand: ShapedArray, dtype: np.dtype, axis: int, reverse: bool) -> CumulativeOp:
    """Return the operation of a primitive along an axis, accumulated in a dtype."""
    rows, columns = math.prod(operand.shape[:axis]), math.prod(operand.shape[axis + 1 :])
    return CumulativeOp(name, reduction_of(name), operand.dtype, dtype, rows, operand.shape[axis], columns, reverse)


# Scalar operations of integers and bool, and which operations targets have.
#
# Operations are functions of `Values`, as the formulas of floats are (`primitives.formulas`), so that each is written once.

N = TypeVar("N", bound=Values)

Operation = Callable[..., Any]


@cache
def kind(dtype: np.dtype) -> str:
    """Return bool, int, uint, float or complex."""
    if dtype in dtypes.FLOATS:
        return "float"
    return {"b": "bool", "i": "int", "u": "uint", "c": "complex"}[dtype.kind]


def supports(
    op: str,
    in_dtypes: Sequence[np.dtype],
    params: Mapping[str, Any],
    is_supported: Callable[[np.dtype], bool],
    complex_operations: Collection[str],
    operation: Callable[[str, np.dtype], Operation | None],
) -> bool:
    """Return True if a target has an operation for operands of these dtypes.

    The target says which dtypes are supported, which complex operations it has, and finds the others by name and dtype.
    """
    if not all(map(is_supported, in_dtypes)):
        return False
    if op == "bitcast_convert_type":
        return params["new_dtype"].itemsize == in_dtypes[0].itemsize and is_supported(params["new_dtype"])
    if op == "convert_element_type":
        return is_supported(params["new_dtype"])
    if op in ("select_n", "complex"):
        return True
    return op in complex_operations if in_dtypes[0].kind == "c" else operation(op, in_dtypes[0]) is not None


# Integers and bool: what each elementwise operation is for them.


def _compare(predicate: str) -> Operation:
    return lambda x, y: x.compare(predicate, y)


def _extremum(predicate: str) -> Operation:
    return lambda x, y: x.compare(predicate, y).select(x, y)


_BITWISE: dict[str, Operation] = {
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}

#: False is less than True; adding and multiplying are `or` and `and`.
BOOL: dict[str, Operation] = {
    **_BITWISE,
    **dict.fromkeys(("add", "max"), _BITWISE["or"]),
    **dict.fromkeys(("mul", "min"), _BITWISE["and"]),
    "not": lambda x: ~x,
    "lt": lambda x, y: ~x & y,
    "le": lambda x, y: ~x | y,
    "gt": lambda x, y: x & ~y,
    "ge": lambda x, y: x | ~y,
    "clamp": lambda low, x, high: (x | low) & high,
}


class Integers(ABC):
    """Operations of integers of a dtype, held in as many bits or more.

    In more bits, signed numbers are sign-extended, unsigned ones zero-extended. A target says how it divides, raises to powers, and counts
    bits.
    """

    def __init__(self, dtype: np.dtype) -> None:
        self.signed = dtype.kind == "i"
        self.width = 8 * dtype.itemsize

    @abstractmethod
    def quotient(self, x: Any, y: Any) -> Any:
        """Return x / y rounded toward zero, for y other than 0.

        Of the one quotient that overflows it is x.
        """

    @abstractmethod
    def power(self, x: Any, y: Any) -> Any:
        """Return x to the power of y, which is not negative."""

    @abstractmethod
    def population_count(self, x: Any) -> Any:
        """Return how many of the dtype's bits are 1."""

    @abstractmethod
    def leading_zeros(self, x: Any) -> Any:
        """Return how many of the dtype's bits precede the highest 1."""

    def narrowed(self, x: N) -> N:
        """Return an integer modulo a power of two, as the dtype has it."""
        if self.width >= x.bits:
            return x
        return self._extended(x) if self.signed else x & ((1 << self.width) - 1)

    def unsigned_bits(self, x: N) -> N:
        """Return the dtype's bits, with zeros above."""
        return x & ((1 << self.width) - 1) if self.signed and self.width < x.bits else x

    def _extended(self, x: N) -> N:
        """Return a number whose upper bits are copies of the dtype's highest one."""
        above = x.bits - self.width
        return (x << above).shift_right(above, signed=True) if above else x

    def _within(self, count: N) -> N:
        """Return whether a shift's count is in 0, …, width - 1, as instructions demand."""
        return count.compare("ult", self.width)

    def _shift_right_arithmetic(self, x: N, count: N) -> N:
        """Shift right; copies of the highest bit move in, even of unsigned integers."""
        most = self._within(count).select(count, self.width - 1)
        return self.narrowed(self._extended(x).shift_right(most, signed=True))

    def _div(self, x: N, y: N) -> N:
        is_zero = y.equals(0)
        return self.narrowed(is_zero.select(-1, self.quotient(x, is_zero.select(1, y))))

    def _rem(self, x: N, y: N) -> N:
        is_zero = y.equals(0)
        safe = is_zero.select(1, y)
        return is_zero.select(x, x - self.quotient(x, safe) * safe)

    def _sign(self, x: N) -> N:
        return x.above(0).select(1, x.shift_right(x.bits - 1, signed=True)) if self.signed else x.equals(0).select(0, x.like(1))

    def _pow(self, x: N, y: N) -> N:
        """Return a power; a negative one is exact, rounded toward zero."""
        if not self.signed:
            return self.narrowed(self.power(x, y))
        unit = (y & 1).equals(1).select(x, 1)
        inverse = (x.equals(1) | x.equals(-1)).select(unit, 0)
        negative = y.below(0)
        return negative.select(inverse, self.narrowed(self.power(x, negative.select(0, y))))

    def operations(self) -> dict[str, Operation]:
        """Return the operations by the names of primitives."""
        order, narrowed, within = "s" if self.signed else "u", self.narrowed, self._within
        greater, lesser = _extremum(f"{order}gt"), _extremum(f"{order}lt")
        table: dict[str, Operation] = {
            **_BITWISE,
            **{name: _compare(order + name) for name in ("lt", "le", "gt", "ge")},
            "max": greater,
            "min": lesser,
            "clamp": lambda low, x, high: lesser(greater(x, low), high),
            "not": lambda x: narrowed(~x),
            "add": lambda x, y: narrowed(x + y),
            "sub": lambda x, y: narrowed(x - y),
            "mul": lambda x, y: narrowed(x * y),
            "neg": lambda x: narrowed(-x),
            "div": self._div,
            "rem": self._rem,
            "abs": lambda x: narrowed(x.below(0).select(-x, x)) if self.signed else x,
            "sign": self._sign,
            "pow": self._pow,
            "integer_pow": lambda x, *, y: narrowed(integer_pow(x, y=y)),
            "shift_left": lambda x, count: narrowed(within(count).select(x << count, 0)),
            "shift_right_logical": lambda x, count: narrowed(within(count).select(self.unsigned_bits(x).shift_right(count), 0)),
            "shift_right_arithmetic": self._shift_right_arithmetic,
            "population_count": self.population_count,
            "clz": self.leading_zeros,
        }
        return table if self.signed else {**table, "threefry2x32_word": threefry2x32_word, "philox4x32_word": philox4x32_word}


# Sort keys: unsigned integers in the order of numbers of any dtype.
#
# Negative floats have all bits flipped, the others their sign; every NaN is the greatest key. Zeros of either sign are equal, but a key
# that is to be turned back into its number must distinguish them: such *faithful* keys of -0.0 and 0.0 are neighbours.

_V = TypeVar("_V", bound=Values)

#: The bits of infinity.
INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}


def is_float(dtype: np.dtype) -> bool:
    """Return True if numbers of the dtype have signed zeros and NaN."""
    return dtype in dtypes.FLOATS


def sort_key(bits: _V, dtype: np.dtype, *, faithful: bool) -> _V:
    """Emit the key of a number of a dtype, in an integer that may have more bits."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return bits ^ sign if dtype.kind == "i" else bits
    size = bits & (sign - 1)
    key = bits ^ bits.compare("uge", sign).select(bits.like(mask), sign)
    if not faithful:
        key = size.equals(0).select(sign, key)
    return size.compare("ugt", INFINITY[dtype.name]).select(mask, key)


def number_of_key(key: _V, dtype: np.dtype) -> _V:
    """Emit the bits of the number of a faithful key (of a NaN, of some NaN)."""
    sign, mask = _sign_and_mask(dtype)
    if not is_float(dtype):
        return key ^ sign if dtype.kind == "i" else key
    return key ^ key.compare("ult", sign).select(key.like(mask), sign)


def _sign_and_mask(dtype: np.dtype) -> tuple[int, int]:
    return 1 << (8 * dtype.itemsize - 1), (1 << 8 * dtype.itemsize) - 1
