"""The types of WGSL: how LLVM calls them, and their layout in memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number or a truth value; `kind` is "float", "int", "uint" or "bool".

    An *abstract* number is that of a literal without suffix. It takes the type of what it is combined with.
    """

    name: str
    kind: str
    bits: int
    llvm: str

    @property
    def is_abstract(self) -> bool:
        """Whether it has no type of its own yet."""
        return self.name in ("abstract-int", "abstract-float")

    @property
    def alignment(self) -> int:
        """Bytes that an address is a multiple of."""
        return max(self.bits // 8, 1)

    size = alignment


@dataclass(frozen=True, slots=True)
class Vector:
    """Two, three or four scalars."""

    element: Scalar
    lanes: int

    @property
    def llvm(self) -> str:
        """The type of values."""
        return f"<{self.lanes} x {self.element.llvm}>"

    @property
    def alignment(self) -> int:
        """Bytes that an address is a multiple of."""
        return self.element.alignment * (2 if self.lanes == 2 else 4)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.element.size * self.lanes


@dataclass(frozen=True, slots=True)
class Atomic:
    """An integer that is read and written by atomic operations alone."""

    element: Scalar

    @property
    def llvm(self) -> str:
        """The type of values."""
        return self.element.llvm

    @property
    def alignment(self) -> int:
        """Bytes that an address is a multiple of."""
        return self.element.alignment

    size = alignment


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type; without a length, as many as the binding has."""

    element: Type
    length: int | None

    @property
    def llvm(self) -> str:
        """The type of values."""
        return f"[{self.length or 0} x {self.element.llvm}]"

    @property
    def alignment(self) -> int:
        """Bytes that an address is a multiple of."""
        return self.element.alignment

    @property
    def stride(self) -> int:
        """Bytes from one element to the next."""
        return _round_up(self.element.size, self.element.alignment)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return (self.length or 0) * self.stride


@dataclass(frozen=True, slots=True)
class Structure:
    """Named members."""

    name: str
    members: tuple[tuple[str, Type], ...]

    @property
    def llvm(self) -> str:
        """The type of values."""
        return f"{{{', '.join(type_.llvm for _, type_ in self.members)}}}"

    @property
    def alignment(self) -> int:
        """Bytes that an address is a multiple of."""
        return max(type_.alignment for _, type_ in self.members)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first byte of each member."""
        offsets, end = [], 0
        for _, type_ in self.members:
            offsets.append(_round_up(end, type_.alignment))
            end = offsets[-1] + type_.size
        return tuple(offsets)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return _round_up(self.offsets[-1] + self.members[-1][1].size, self.alignment)


Type = Scalar | Vector | Atomic | Array | Structure


def _round_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def memory_type(type_: Type) -> str:
    """Return LLVM's type of memory that holds a value.

    Structures and vectors of truth values are bytes, so that WGSL's layout is kept.
    """
    if isinstance(type_, Array):
        return f"[{type_.length or 0} x {memory_type(type_.element)}]"
    if isinstance(type_, Structure) or (isinstance(type_, Vector) and type_.element.kind == "bool"):
        return f"[{_round_up(type_.size, type_.alignment)} x i8]"
    return type_.llvm


BOOL = Scalar("bool", "bool", 1, "i1")
I32, U32 = Scalar("i32", "int", 32, "i32"), Scalar("u32", "uint", 32, "i32")
I64, U64 = Scalar("i64", "int", 64, "i64"), Scalar("u64", "uint", 64, "i64")
F16, F32, F64 = Scalar("f16", "float", 16, "half"), Scalar("f32", "float", 32, "float"), Scalar("f64", "float", 64, "double")
ABSTRACT_INT, ABSTRACT_FLOAT = Scalar("abstract-int", "int", 64, "i64"), Scalar("abstract-float", "float", 64, "double")

SCALARS = {scalar.name: scalar for scalar in (BOOL, I32, U32, I64, U64, F16, F32, F64)}
#: The types of literals by their suffixes.
SUFFIXES = {"bool": BOOL, "i": I32, "u": U32, "li": I64, "lu": U64, "h": F16, "f": F32, "lf": F64}


def element_of(type_: Type) -> Scalar:
    """Return the scalar type of a scalar, a vector or an atomic."""
    if isinstance(type_, Scalar):
        return type_
    if isinstance(type_, Vector | Atomic):
        return type_.element
    raise TypeError(f"{type_.llvm} has no components")


def with_element(type_: Type, element: Scalar) -> Scalar | Vector:
    """Return a scalar, or a vector of as many lanes as a type has."""
    return Vector(element, type_.lanes) if isinstance(type_, Vector) else element


def default_type(scalar: Scalar) -> Scalar:
    """Return the type that an abstract number takes by itself."""
    return {ABSTRACT_INT: I32, ABSTRACT_FLOAT: F32}.get(scalar, scalar)


def wrapped(scalar: Scalar, number: int) -> int:
    """Return an integer modulo the range of its type."""
    bits = number & ((1 << scalar.bits) - 1)
    return bits - (1 << scalar.bits) if scalar.kind == "int" and bits >> (scalar.bits - 1) else bits


def saturated(scalar: Scalar, number: int | float) -> int | float:
    """Return a float as the nearest integer of a type toward zero.

    For other types it is the number itself.
    """
    if scalar.kind not in ("int", "uint"):
        return number
    least = -(1 << (scalar.bits - 1)) if scalar.kind == "int" else 0
    return min(max(int(number), least), least + (1 << scalar.bits) - 1)


def constant_text(scalar: Scalar, number: int | float | bool) -> str:
    """Return a constant as LLVM writes it; floats by their bits."""
    if scalar.kind == "bool":
        return "true" if number else "false"
    if scalar.kind != "float":
        bits = wrapped(scalar, int(number))
        return str(bits)
    value = float(number)
    if scalar.bits == 16:
        return "0xH" + struct.pack(">e", value).hex().upper()
    if scalar.bits == 32:
        value = struct.unpack("f", struct.pack("f", value))[0]
    return "0x" + struct.pack(">d", value).hex().upper()
