"""Conversions between floats of 8 bits and wider ones.

GPUs of compute capability 9.0 have instructions for them. Elsewhere the host converts them: shaders have no such numbers. A thread converts
four numbers, a word of those of 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.kernel import KernelFunction, KernelHeader, f32, i32, kernel_dispatch
from volta_fn.targets.wgsl.routine import Routine

_E4M3, _E5M2, _E8M0 = map(np.dtype, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu))
_WIDE = frozenset(map(np.dtype, (np.float32, np.float16, dtypes.bfloat16)))

#: The names in PTX of two numbers of 8 bits.
_PAIRS = {_E4M3: "e4m3x2", _E5M2: "e5m2x2"}

#: The numbers of a word, and threads of a block.
_NUMBERS, _THREADS = 4, 256

#: The most numbers, which 32 bits count.
_MOST = 1 << 31


def convert_element_type(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of a conversion from or to floats of 8 bits; None for others."""
    (aval,), target = avals, np.dtype(params["new_dtype"])
    pair = {aval.dtype, target}
    if device.matrix_units != "wgmma" or not pair & _WIDE or not pair & {*_PAIRS, _E8M0} or not 0 < aval.size < _MOST:
        return None
    f, count = KernelFunction(0, 2, _THREADS), aval.size
    narrows = aval.dtype in _WIDE
    word = f.plus(f.times(f.special("ctaid.x"), _THREADS), f.thread)
    first = f.times(word, _NUMBERS)
    source, result = f.bindings
    with f.only_if(f.below(first, count)):
        is_whole = f.below(f.plus(first, i32(_NUMBERS - 1)), count) if count % _NUMBERS else None
        if narrows:
            numbers = _load(f, source, aval.dtype, first, count, is_whole)
            f.store(_narrowed(f, numbers, target), f.element(result, f.widened_index(word), 4), 4)
        else:
            numbers = _widened(f, f.load("i32", f.element(source, f.widened_index(word), 4), 4), aval.dtype)
            _store(f, result, target, numbers, first, count, is_whole)
    return Routine((kernel_dispatch(KernelHeader(_THREADS, 0), (0, 1), 1, f.text(), -(-count // (_THREADS * _NUMBERS))),))


# Wide numbers in memory. Those of the last thread may be fewer than four.


def _memory_type(dtype: np.dtype) -> str:
    return {2: "half" if dtype == np.float16 else "bfloat", 4: "float"}[dtype.itemsize]


def _load(f: KernelFunction, base: Value, dtype: np.dtype, first: Value, count: int, is_whole: Value | None) -> list[Value]:
    type_, size = _memory_type(dtype), dtype.itemsize

    def whole() -> list[Value]:
        vector = f.load(f"<{_NUMBERS} x {type_}>", f.element(base, f.widened_index(first), size), _NUMBERS * size)
        wide = vector if type_ == "float" else f.cast("fpext", vector, f"<{_NUMBERS} x float>")
        return f.elements(wide)

    def each() -> list[Value]:
        """Return the numbers one by one, the last one in the place of those beyond it."""
        places = [f.umin(f.plus(first, i32(k)), i32(count - 1)) for k in range(_NUMBERS)]
        loaded = [f.load(type_, f.element(base, f.widened_index(place), size), size) for place in places]
        return loaded if type_ == "float" else [f.cast("fpext", x, "float") for x in loaded]

    return whole() if is_whole is None else f.branch(is_whole, whole, each)


def _store(
    f: KernelFunction, base: Value, dtype: np.dtype, numbers: Sequence[Value], first: Value, count: int, is_whole: Value | None
) -> None:
    type_, size = _memory_type(dtype), dtype.itemsize
    vector = f.vector(numbers)
    rounded = vector if type_ == "float" else f.cast("fptrunc", vector, f"<{_NUMBERS} x {type_}>")
    with f.only_if(is_whole):
        f.store(rounded, f.element(base, f.widened_index(first), size), _NUMBERS * size)
    if is_whole is not None:
        last = f.compare("icmp uge", f.plus(first, i32(_NUMBERS - 1)), i32(count))
        for k, number in enumerate(f.elements(rounded)):
            place = f.plus(first, i32(k))
            with f.only_if(f.binary("and", last, f.below(place, count))):
                f.store(number, f.element(base, f.widened_index(place), size), size)


# Words of four numbers of 8 bits.


def _widened(f: KernelFunction, word: Value, dtype: np.dtype) -> list[Value]:
    """Emit the numbers of a word as float32."""
    if dtype == _E8M0:
        return [_power(f, f.binary("and", f.binary("lshr", word, i32(8 * k)), i32(0xFF))) for k in range(_NUMBERS)]
    numbers = []
    for half in range(2):
        two = f.cast("trunc", f.binary("lshr", word, i32(16)) if half else word, "i16")
        (halves,) = f.ptx(f"cvt.rn.f16x2.{_PAIRS[dtype]} $0, $1;", two, results=["i32"])
        numbers += f.elements(f.cast("fpext", f.cast("bitcast", halves, "<2 x half>"), "<2 x float>"))
    return numbers


def _power(f: KernelFunction, exponent: Value) -> Value:
    """Emit the power of two of an exponent, whose bias is 127; 255 stands for NaN."""
    bits = f.binary("shl", exponent, i32(23))
    bits = f.select(f.equals(exponent, 0), i32(1 << 22), f.select(f.equals(exponent, 255), i32(0x7FC00000), bits))
    return f.cast("bitcast", bits, "float")


def _narrowed(f: KernelFunction, numbers: Sequence[Value], dtype: np.dtype) -> Value:
    """Emit numbers as a word, rounded to the nearest."""
    if dtype == _E8M0:
        return _word(f, [_exponent(f, x) for x in numbers])
    pairs: list[Value] = []
    fix: Callable[[Value], Value] = (lambda x: _nan_beyond(f, x)) if dtype == _E4M3 else (lambda x: x)
    for low, high in (numbers[:2], numbers[2:]):
        pairs += f.ptx(f"cvt.rn.satfinite.{_PAIRS[dtype]}.f32 $0, $1, $2;", fix(high), fix(low), results=["i16"])
    low, high = [f.cast("zext", pair, "i32") for pair in pairs]
    word = f.binary("or", low, f.binary("shl", high, i32(16)))
    if dtype == _E4M3:
        return word
    for k, x in enumerate(numbers):  # e5m2 has infinities, which the instruction does not round to
        signed = f.binary("or", f.binary("and", word, i32(~(0x7F << 8 * k))), i32(0x7C << 8 * k))
        beyond = f.compare("fcmp oge", f.intrinsic("llvm.fabs.f32", "float", x), f32(61440.0))
        word = f.select(beyond, signed, word)
    return word


def _nan_beyond(f: KernelFunction, x: Value) -> Value:
    """Emit a number; NaN if it would be rounded to more than the largest of e4m3fn."""
    beyond = f.compare("fcmp ogt", f.intrinsic("llvm.fabs.f32", "float", x), f32(464.0))
    return f.select(beyond, f32(float("nan")), x)


def _exponent(f: KernelFunction, x: Value) -> Value:
    """Emit the exponent of the nearest power of two, of two the larger one.

    It is 255 for numbers that are not positive.
    """
    bits = f.cast("bitcast", x, "i32")
    half = f.select(f.below(bits, 1 << 23), i32((1 << 22) - 1), i32(1 << 22))  # what is more than 2^-127 becomes 2^-126 at least
    rounded = f.binary("lshr", f.binary("add", bits, half), i32(23))
    return f.select(f.compare("fcmp ogt", x, f32(0.0)), rounded, i32(255))


def _word(f: KernelFunction, parts: Sequence[Value]) -> Value:
    word = parts[0]
    for k, part in enumerate(parts[1:], 1):
        word = f.binary("or", word, f.binary("shl", part, i32(8 * k)))
    return word


#: Makers of routines by the name of the primitive.
ROUTINES = {"convert_element_type": convert_element_type}
