"""Numbers of a dtype in registers and in memory, and operations on them.

Elementwise operations are instructions with estimated costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.codegen import scalars
from volta_fn.codegen.scalars import BOOL, Integers, Operation, kind
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.formulas import exponential
from volta_fn.primitives.formulas.complex_numbers import COMPLEX, Complex
from volta_fn.primitives.formulas.values import rounded_to_odd, with_sticky_bits
from volta_fn.runtime.llvm import text
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Module, Value, element_of, i64, lanes_of, vector_of
from volta_fn.targets.cpu.scalars.values import Lanes, inlined, literal, overload

# Numbers of any dtype in registers, and constants.

BFLOAT16, FLOAT16 = np.dtype(dtypes.bfloat16), np.dtype(np.float16)


class Number(NamedTuple):
    """Numbers of a dtype, one per lane.

    bool is held as i1. float16 and bfloat16 are held as float32 of the same value. Complex numbers are two components, real and imaginary.
    """

    dtype: np.dtype
    components: tuple[Value, ...]

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return lanes_of(self.components[0].type)

    @property
    def value(self) -> Value:
        """The only component of a real number."""
        return self.components[0]


def element(dtype: np.dtype) -> str:
    """Return the LLVM type of a number, or its component, in a register."""
    if dtype.kind in "iu":
        return f"i{8 * dtype.itemsize}"
    return {"bool": "i1", "float64": "double", "complex128": "double"}.get(dtype.name, "float")


def is_supported(dtype: np.dtype) -> bool:
    """Return True if this machine computes with the dtype.

    float16 needs instructions that convert it.
    """
    return host().converts_float16 if dtype == FLOAT16 else dtype in dtypes.ALL


def components_of(f: Function, x: Number) -> list[Lanes]:
    """Return the components as `Lanes`."""
    return [Lanes(f, p) for p in x.components]


def rounded(x: Lanes, dtype: np.dtype) -> Lanes:
    """Round float32 to float16 or bfloat16; of other dtypes return `x`."""
    if dtype == FLOAT16:
        return x.cast("fptrunc", "half").cast("fpext", "float")
    return (bfloat16_bits(x) << 16).as_float() if dtype == BFLOAT16 else x


def bfloat16_bits(x: Lanes) -> Lanes:
    """Return the bits of float32 rounded to bfloat16, to nearest even.

    They are integers of 32 bits; NaN stays NaN.
    """
    bits = x.as_bits()
    up = bits + (bits.shift_right(16) & 1) + 0x7FFF
    return x.is_nan().select(bits | 0x400000, up).shift_right(16)


def constant(f: Function, value: Any, lanes: int) -> Number:
    """Return a zero-dimensional array in all lanes."""
    array = np.asarray(value)
    components = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    type_ = element(array.dtype)
    return Number(array.dtype, tuple([f.splat(Value(type_, literal(type_, _python(p))), lanes) for p in components]))


def _python(x: Any) -> Any:
    return float(x) if x.dtype in dtypes.FLOATS else x.item()


def splat(f: Function, x: Number, lanes: int) -> Number:
    """Return one number in all lanes."""
    return Number(x.dtype, tuple([f.splat(p, lanes) for p in x.components]))


def counting(f: Function, type_: str, lanes: int) -> Lanes:
    """Return the integers 0, 1, 2, … by lanes."""
    return Lanes(f, text.counting(lanes, type_))


# Numbers of one dtype as numbers of another: by value, and by bits.


def convert(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Convert the values as `convert_element_type` defines it."""
    if x.dtype == dtype:
        return x
    components = components_of(f, x)
    if x.dtype.kind == "c" and dtype.kind == "b":
        return Number(dtype, ((components[0].compare("une", 0.0) | components[1].compare("une", 0.0)).value,))
    real = _real(components[0], np.dtype(f"f{x.dtype.itemsize // 2}") if x.dtype.kind == "c" else x.dtype, dtype)
    if dtype.kind != "c":
        return Number(dtype, (real.value,))
    other = _real(components[1], np.dtype(f"f{x.dtype.itemsize // 2}"), dtype) if len(components) == 2 else real.like(0.0)
    return Number(dtype, (real.value, other.value))


def _real(x: Lanes, old: np.dtype, new: np.dtype) -> Lanes:
    """Convert a component to `new`, or to a component of a complex number."""
    before, after, type_ = kind(old), kind(new), element(new)
    if after == "bool":
        return x.compare("une" if before == "float" else "ne", 0)
    if after in ("int", "uint"):
        return _saturated(x, after, type_) if before == "float" else _resized(x, before, type_)
    if before == "float":
        if type_ == "double":
            return x.cast("fpext", "double") if x.bits == 32 else x
        if x.bits == 32:
            return rounded(x, new)
        near = x.narrowed()
        return rounded(rounded_to_odd(x, near, near.widened()) if new in (FLOAT16, BFLOAT16) else near, new)
    if new == BFLOAT16 and old.itemsize >= 4:
        x = with_sticky_bits(x, before == "int")
    return rounded(x.cast("sitofp" if before == "int" else "uitofp", type_), new)


def _saturated(x: Lanes, after: str, type_: str) -> Lanes:
    """Toward zero; NaN to 0, values out of range to the nearest bound."""
    # LLVM's own saturating conversion of a vector goes number by number.
    bits, is_signed = int(type_[1:]), after == "int"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    inside = x.compare("oge", float(low)) & x.compare("olt", float(high))
    result = inside.select(x, 0.0).cast("fptosi" if is_signed else "fptoui", type_)
    if is_signed:
        result = x.compare("olt", float(low)).select(low, result)
    return x.compare("oge", float(high)).select(high - 1, result)


def _resized(x: Lanes, before: str, type_: str) -> Lanes:
    width = int(type_[1:])
    if width == x.bits:
        return x
    return x.cast("trunc" if width < x.bits else "sext" if before == "int" else "zext", type_)


def bitcast(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Return the bits as a dtype of the same width."""
    return Number(dtype, (_from_bits(_bits(Lanes(f, x.value), x.dtype), dtype).value,))


def _bits(x: Lanes, dtype: np.dtype) -> Lanes:
    if dtype == BFLOAT16:
        return x.as_bits().shift_right(16).cast("trunc", "i16")
    if dtype == FLOAT16:
        return x.cast("fptrunc", "half").as_bits()
    return x.as_bits() if kind(dtype) == "float" else x


def _from_bits(bits: Lanes, dtype: np.dtype) -> Lanes:
    if dtype == BFLOAT16:
        return (bits.cast("zext", "i32") << 16).as_float()
    if dtype == FLOAT16:
        return bits.as_float().cast("fpext", "float")
    return bits.as_float() if kind(dtype) == "float" else bits


# Numbers between memory and registers.
#
# In memory bool is a byte, bfloat16 its bits, float16 `half`, and a complex number its two components.

#: Strides up to which vectors of neighbours are shuffled, which takes less time than reading numbers one by one.
_SHUFFLED = 4

#: The most lanes of a mask that fits a general register.
_HIDDEN = 64


class _Stride(NamedTuple):
    """The offsets of a vector's numbers: that of lane k is `first + k * step`.

    Elements up to `last` after each `k * step` may be read, too.
    """

    step: int
    first: int = 0
    last: int = 0


def stored_element(dtype: np.dtype) -> str:
    """Return the LLVM type of a number, or a complex one's component, in memory."""
    if dtype.kind == "b":
        return "i8"
    return {BFLOAT16: "i16", FLOAT16: "half"}.get(dtype) or element(dtype)


def load(
    f: Function, dtype: np.dtype, pointer: Value, lanes: int, *, count: Value | None = None, stride: int = 1, first: int = 0, last: int = 0
) -> Number:
    """Load numbers, the first at `pointer`, each `stride` elements further.

    Of `count` (an i64) only so many lanes are read, at most all; the others are 0. `first` is added to the offset of each number. All
    offsets up to `last` must be readable, too: loads that differ in `first` alone then load the same vectors, and LLVM loads them once.
    """
    type_, size = stored_element(dtype), dtype.itemsize
    if stride == -1 and count is None and lanes > 1:
        last_pointer = f.let("ptr", f"getelementptr [{size} x i8], {pointer}, i64 {1 - lanes}")
        return shuffled(f, load(f, dtype, last_pointer, lanes), range(lanes)[::-1])
    if dtype.kind != "c":
        numbers = _read(f, type_, pointer, lanes, count, _Stride(stride, first, last), size)
        return Number(dtype, (_from_memory(dtype, numbers).value,))
    if stride != 1 or lanes == 1:
        components = [_Stride(2 * stride, 2 * first + k, 2 * last + 1) for k in (0, 1)]
        return Number(dtype, tuple([_read(f, type_, pointer, lanes, count, each, size // 2).value for each in components]))
    both = _read(f, type_, pointer, 2 * lanes, _twice(f, count), _Stride(1), size // 2)
    return Number(dtype, tuple([both.shuffle(range(k, 2 * lanes, 2)).value for k in (0, 1)]))


def store(f: Function, x: Number, pointer: Value, *, count: Value | None = None, stride: int = 1) -> None:
    """Store numbers, laid out as `load` reads them; of `count` only so many lanes."""
    dtype, lanes, size = x.dtype, x.lanes, x.dtype.itemsize
    components = [_to_memory(dtype, Lanes(f, p)) for p in x.components]
    if len(components) == 1:
        return _write(components[0], pointer, count, stride, size)
    if stride != 1 or lanes == 1:
        _write(components[0], pointer, count, 2 * stride, size // 2)
        return _write(components[1], f.at(pointer, stored_element(dtype), i64(1)), count, 2 * stride, size // 2)
    order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
    return _write(components[0].shuffle(order, components[1]), pointer, _twice(f, count), 1, size // 2)


def _twice(f: Function, count: Value | None) -> Value | None:
    return None if count is None else f.binary("shl", count, i64(1))


def _from_memory(dtype: np.dtype, x: Lanes) -> Lanes:
    if dtype.kind == "b":
        return x.compare("ne", 0)
    if dtype == BFLOAT16:
        return (x.cast("zext", "i32") << 16).as_float()
    return x.cast("fpext", "float") if dtype == FLOAT16 else x


def _to_memory(dtype: np.dtype, x: Lanes) -> Lanes:
    if dtype.kind == "b":
        return x.cast("zext", "i8")
    if dtype == BFLOAT16:
        return x.as_bits().shift_right(16).cast("trunc", "i16")
    return x.cast("fptrunc", "half") if dtype == FLOAT16 else x


def _read(f: Function, type_: str, pointer: Value, lanes: int, count: Value | None, stride: _Stride, align: int) -> Lanes:
    vector, step = vector_of(type_, lanes), stride.step
    if lanes > 1 and count is None and 2 <= step <= _SHUFFLED:
        return Lanes(f, _load_by_shuffles(f, type_, pointer, lanes, stride, align))
    if stride.first:
        pointer = f.at(pointer, type_, i64(stride.first))
    if lanes == 1:
        return Lanes(f, _read_one(f, type_, pointer, count, align))
    if step == 0:
        some = None if count is None else f.compare("icmp sgt", count, i64(0))
        return Lanes(f, _masked(f, f.splat(_read_one(f, type_, pointer, some, align), lanes), count))
    if step == 1 and count is None:
        return Lanes(f, f.load(vector, pointer, align))
    mask = _mask(f, lanes, count, type_)
    if step == 1:
        return Lanes(f, masked_load(f, vector, pointer, align, mask))
    return Lanes(f, gathered(f, vector, pointer, align, step, mask))


def _load_by_shuffles(f: Function, type_: str, pointer: Value, lanes: int, stride: _Stride, align: int) -> Value:
    """Load contiguous vectors, and shuffle their strided numbers into one."""
    step, end = stride.step, (lanes - 1) * stride.step + stride.last + 1
    positions = [min(k * lanes, end - lanes) for k in range(step)]  # nothing is read beyond the end
    vectors = [f.load(vector_of(type_, lanes), f.at(pointer, type_, i64(position)), align) for position in positions]
    elements = [lane * step + stride.first for lane in range(lanes)]
    result = vectors[0]
    if step % 2 and end == lanes * step:  # as lanes are a power of two, no two wanted numbers are in the same lane
        for position, vector in zip(positions[1:], vectors[1:], strict=True):
            result = f.shuffle(result, [k + lanes * (position + k in elements) for k in range(lanes)], vector)
        return f.shuffle(result, [number % lanes for number in elements])
    lane_of = elements  # where the vector so far has the numbers that are wanted
    for vector, before, position in zip(vectors[1:], positions, positions[1:], strict=False):
        order = [n if k < before + lanes else lanes + min(k - position, lanes - 1) for n, k in zip(lane_of, elements, strict=True)]
        result, lane_of = f.shuffle(result, order, vector), list(range(lanes))
    return result


def _write(x: Lanes, pointer: Value, count: Value | None, stride: int, align: int) -> None:
    f, lanes = x.f, x.lanes
    if lanes == 1:
        return _if_any(f, count, lambda: f.store(x.value, pointer, align))
    if stride == 1 and count is None:
        return f.store(x.value, pointer, align)
    mask = _mask(f, lanes, count, element_of(x.type))
    return masked_store(f, x.value, pointer, align, mask) if stride == 1 else scattered(f, x.value, pointer, align, stride, mask)


def masked_load(f: Function, vector: str, pointer: Value, align: int, mask: Value) -> Value:
    """Load a vector, zero where the mask leaves lanes out, which are not touched."""
    # The alignment is an operand, as up to LLVM 21: LLVM 22 reads this form, too, and makes its own of it.
    name = f"llvm.masked.load.{overload(vector)}.p0"
    return f.intrinsic(name, vector, pointer, Value("i32", str(align)), mask, Value(vector, "zeroinitializer"))


def masked_store(f: Function, value: Value, pointer: Value, align: int, mask: Value) -> None:
    """Store the lanes of a vector that the mask has."""
    # LLVM (22, for AVX-512) makes of a truncation and a store with a mask of one known lane a store of the untruncated number, beyond the
    # lane's bytes. So a lane known here is extracted, and masks of narrow integers that LLVM may find out later are hidden from it.
    constant_mask = [lane.endswith("true") for lane in mask.name.strip("<>").split(",")] if mask.name.startswith("<") else []
    if sum(constant_mask) == 1:
        type_, lane = element_of(value.type), constant_mask.index(True)
        f.store(f.let(type_, f"extractelement {value}, i64 {lane}"), f.at(pointer, type_, i64(lane)), align)
    elif constant_mask and host().vector_registers < 32 and constant_mask == sorted(constant_mask, reverse=True):
        # AMD's CPUs take ten cycles for a masked store of AVX.
        _store_first(f, value, pointer, align, sum(constant_mask))
    else:
        if not constant_mask and host().vector_bytes == 64 and element_of(value.type) in ("i8", "i16", "i32"):
            if (lanes := lanes_of(mask.type)) > _HIDDEN:
                for start in range(0, lanes, _HIDDEN):
                    chunk = range(start, min(start + _HIDDEN, lanes))
                    address = f.at(pointer, element_of(value.type), i64(start))
                    masked_store(f, f.shuffle(value, chunk), address, align, f.shuffle(mask, chunk))
                return
            # The mask passes through a general register, after which LLVM knows nothing of it.
            bits = f"i{lanes_of(mask.type)}"
            word = f.cast("zext", f.cast("bitcast", mask, bits), "i64")
            hidden = f.let("i64", f'call i64 asm "", "=r,0"({word}) nounwind memory(none)')
            mask = f.cast("bitcast", f.cast("trunc", hidden, bits), mask.type)
        name = f"llvm.masked.store.{overload(value.type)}.p0"
        f.module.declare(name, f"declare void @{name}({value.type}, ptr, i32, {mask.type})")
        f.do(f"call void @{name}({value}, {pointer}, i32 {align}, {mask})")


def first_of(count: int, lanes: int) -> Value:
    """Return the mask of the first `count` lanes."""
    bits = ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes))
    return Value(vector_of("i1", lanes), f"<{bits}>")


def lanes_below(f: Function, count: Value, lanes: int) -> Value:
    """Return the mask of the first `count` (an i64 that may exceed `lanes`) lanes."""
    capped = text.least(f, count, i64(lanes))
    return f.compare("icmp slt", text.counting(lanes, "i32"), f.splat(f.cast("trunc", capped, "i32"), lanes))


def everywhere(lanes: int) -> Value:
    """Return the mask of all lanes."""
    return Value(vector_of("i1", lanes), "splat (i1 true)")


def _store_first(f: Function, value: Value, pointer: Value, align: int, count: int) -> None:
    """Store the first lanes, as vectors whose sizes are powers of two."""
    type_, start = element_of(value.type), 0
    for size in (1 << k for k in range(count.bit_length() - 1, -1, -1)):
        if count & size:
            if size > 1:
                component = f.shuffle(value, range(start, start + size))
            else:
                component = f.let(type_, f"extractelement {value}, i64 {start}")
            f.store(component, f.at(pointer, type_, i64(start)), align)
            start += size


def _read_one(f: Function, type_: str, pointer: Value, condition: Value | None, align: int) -> Value:
    """Load a number, or 0 unless `condition` (an i1, or a count)."""
    if condition is None:
        return f.load(type_, pointer, align)
    some = condition if condition.type == "i1" else f.compare("icmp sgt", condition, i64(0))
    zero = Value(type_, "0" if type_.startswith("i") else "0xH0000" if type_ == "half" else "0.0")
    return f.branch(some, lambda: [f.load(type_, pointer, align)], lambda: [zero])[0]


def _if_any(f: Function, count: Value | None, write: Callable[[], None]) -> None:
    def written() -> list[Value]:
        write()
        return []

    if count is None:
        write()
    else:
        f.branch(f.compare("icmp sgt", count, i64(0)), written)


def _masked(f: Function, x: Value, count: Value | None) -> Value:
    if count is None:
        return x
    mask = _mask(f, lanes_of(x.type), count, "i32")
    return f.select(mask, x, Value(x.type, "zeroinitializer"))


def _mask(f: Function, lanes: int, count: Value | None, type_: str) -> Value:
    """Return a mask of the first `count` lanes."""
    # It compares integers as wide as the numbers.
    if count is None:
        return f.splat(Value("i1", "true"), lanes)
    if count.name.isdigit():
        return first_of(int(count.name), lanes)
    integer = {"half": "i16", "float": "i32", "double": "i64"}.get(type_, type_)
    if integer == "i8" and lanes >= 256:
        integer = "i32"
    return counting(f, integer, lanes).compare("ult", Lanes(f, f.splat(f.cast("trunc", count, integer), lanes))).value


def _addresses(f: Function, vector: str, pointer: Value, stride: int) -> Value:
    lanes = lanes_of(vector)
    offsets = f"<{lanes} x i64> <{', '.join(f'i64 {k * stride}' for k in range(lanes))}>"
    return f.let(f"<{lanes} x ptr>", f"getelementptr {element_of(vector)}, {pointer}, {offsets}")


def gathered(f: Function, vector: str, pointer: Value, align: int, stride: int, mask: Value) -> Value:
    """Load numbers with a stride, zero where the mask leaves lanes out."""
    where, name = _addresses(f, vector, pointer, stride), f"llvm.masked.gather.{overload(vector)}.v{lanes_of(vector)}p0"
    return f.intrinsic(name, vector, where, Value("i32", str(align)), mask, Value(vector, "zeroinitializer"))


def scattered(f: Function, vector: Value, pointer: Value, align: int, stride: int, mask: Value) -> None:
    """Store the lanes that the mask has with a stride."""
    where, name = _addresses(f, vector.type, pointer, stride), f"llvm.masked.scatter.{overload(vector.type)}.v{lanes_of(vector.type)}p0"
    f.module.declare(name, f"declare void @{name}({vector.type}, {where.type}, i32, {mask.type})")
    f.run(name, vector, where, Value("i32", str(align)), mask)


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
            result, square, exponent = [x.new(v) for v in carried]
            odd = (exponent & 1).compare("ne", 0)
            return [odd.select(result * square, result).value, (square * square).value, exponent.shift_right(1).value]

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
        x = combine(f, reduction, shuffled(f, x, range(half)), shuffled(f, x, range(half, 2 * half)))
    return x


def shuffled(f: Function, x: Number, order: Sequence[int], other: Number | None = None) -> Number:
    """Return lanes of numbers (and of others, numbered on) in an order."""
    others = other.components if other else (None,) * len(x.components)
    return Number(x.dtype, tuple([f.shuffle(p, order, o) for p, o in zip(x.components, others, strict=True)]))
