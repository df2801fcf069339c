"""Types, values, places in memory, and the instructions of operators.

WGSL leaves nothing undefined that LLVM does: a quotient by 0 is the dividend, shifts count modulo the width, conversions saturate. Floats
are IEEE's, without flags that let LLVM assume or contract anything.
"""

from __future__ import annotations

import operator as operators
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from volta_fn.errors import CompilerError
from volta_fn.targets.nvidia.translation.syntax import fault

# The types of WGSL: how LLVM calls them, and their layout in memory.


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


# Values.


class Value(NamedTuple):
    """A result of an instruction, or a constant, with its number if a scalar."""

    type: Type
    text: str
    number: int | float | None = None

    def __str__(self) -> str:
        return f"{self.type.llvm} {self.text}"


class Place(NamedTuple):
    """A variable in memory, or a part of one."""

    type: Type
    pointer: str
    space: int

    def __str__(self) -> str:
        return f"ptr addrspace({self.space}) {self.pointer}" if self.space else f"ptr {self.pointer}"


class Lane(NamedTuple):
    """A component of a vector in an invocation's own memory."""

    type: Scalar
    vector: Place
    number: Value


Operand = Value | Place | Lane

#: NVPTX's numbers of address spaces; WGSL's `function` and `private` are LLVM's generic space.
OWN, GLOBAL, SHARED, CONSTANT = 0, 1, 3, 4


def constant(scalar: Scalar, number: int | float | bool) -> Value:
    """Return a constant of a type."""
    if scalar.is_abstract:
        return Value(scalar, "", number)
    if scalar.kind == "float":
        return Value(scalar, constant_text(scalar, number), float(number))
    number = bool(number) if scalar.kind == "bool" else wrapped(scalar, int(number))
    return Value(scalar, constant_text(scalar, number), number)


def zero(type_: Type) -> Value:
    """Return the zero value of a type."""
    return constant(type_, 0) if isinstance(type_, Scalar) else Value(type_, "zeroinitializer")


def concrete(value: Value, scalar: Scalar | None = None) -> Value:
    """Return a literal as a number of a type, or of its own; other values as they are."""
    if isinstance(value.type, Scalar) and value.type.is_abstract:
        assert value.number is not None
        return constant(scalar or default_type(value.type), value.number)
    return value


def is_constant(value: Value) -> bool:
    """Return whether LLVM knows the value as text."""
    return not value.text.startswith("%")


def suffix(type_: Type) -> str:
    """Return a type as it ends the names of LLVM's intrinsics."""
    scalar = element_of(type_)
    name = f"f{scalar.bits}" if scalar.kind == "float" else f"i{scalar.bits}"
    return f"v{type_.lanes}{name}" if isinstance(type_, Vector) else name


#: Beginnings of the names of intrinsics that invocations call together.
_CONVERGENT = ("llvm.nvvm.barrier.", "llvm.nvvm.shfl.", "llvm.nvvm.vote.")

#: What operators do to compile-time integers.
_FOLDED: dict[str, Callable[[int, int], int]] = {
    "+": operators.add, "-": operators.sub, "*": operators.mul, "&": operators.and_, "|": operators.or_, "^": operators.xor,
    "==": operators.eq, "!=": operators.ne, "<": operators.lt, "<=": operators.le, ">": operators.gt, ">=": operators.ge,
}  # fmt: skip
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_FLOATS = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}
_INTEGERS = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor", "<<": "shl"}


class Instructions:
    """The instructions of one function, in the order in which they are appended."""

    def __init__(self, intrinsics: dict[str, str], *, is_checked: bool) -> None:
        #: Declarations of the intrinsics that the module calls.
        self._intrinsics = intrinsics
        #: Whether an index out of range ends the kernel.
        self._is_checked = is_checked
        self.lines: list[str] = []
        self.variables: list[str] = []
        self.line = 0
        self._count = 0
        self.label = "entry"
        #: Whether the current block has ended.
        self.is_terminated = False
        #: Whether invocations wait for each other, or exchange values.
        self.is_convergent = False

    def fault(self, problem: str) -> CompilerError:
        """Return the error of the current statement."""
        return fault(self.line, problem)

    # instructions and blocks

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{prefix}{self._count}"

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        if self.is_terminated:
            self.begin(self.fresh("unreachable"))
        self.lines.append(f"  {instruction}")

    def let(self, type_: Type, expression: str) -> Value:
        """Append an instruction and return its result."""
        name = f"%{self.fresh('v')}"
        self.do(f"{name} = {expression}")
        return Value(type_, name)

    def end(self, instruction: str) -> None:
        """Append the last instruction of a block."""
        self.do(instruction)
        self.is_terminated = True

    def begin(self, label: str) -> None:
        """Begin a block, which the one before falls through to unless it has ended."""
        if not self.is_terminated:
            self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")
        self.label, self.is_terminated = label, False

    def _declared(self, name: str, result: str, arguments: Sequence[Value | str]) -> str:
        types = [a.type.llvm if isinstance(a, Value) else a.rpartition(" ")[0] for a in arguments]
        self.is_convergent |= name.startswith(_CONVERGENT)
        self._intrinsics[name] = f"declare {result} @{name}({', '.join(types)})"
        return f"call {result} @{name}({', '.join(map(str, arguments))})"

    def intrinsic(self, type_: Type, name: str, *arguments: Value | str) -> Value:
        """Append a call of an intrinsic; arguments are values, or types with constants."""
        return self.let(type_, self._declared(name, type_.llvm, arguments))

    def run(self, name: str, *arguments: Value | str) -> None:
        """Append a call of an intrinsic without a result."""
        self.do(self._declared(name, "void", arguments))

    # memory

    def variable(self, type_: Type) -> Place:
        """Return a new variable of the function."""
        name = f"%{self.fresh('x')}"
        self.variables.append(f"  {name} = alloca {memory_type(type_)}, align {type_.alignment}")
        return Place(type_, name, OWN)

    def load(self, operand: Operand) -> Value:
        """Return the value in a place; values are returned as they are."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, Lane):
            return self.component(self.load(operand.vector), operand.number)
        type_ = operand.type
        if isinstance(type_, Atomic):
            raise self.fault("an atomic is read by atomicLoad alone")
        if isinstance(type_, Array | Structure):
            return self.composite(type_, [self.load(part) for part in self._parts(operand)])
        if isinstance(type_, Vector) and type_.element is BOOL:
            loaded = self.let(type_, f"load <{type_.lanes} x i8>, {operand}, align 1")
            return self.let(type_, f"trunc <{type_.lanes} x i8> {loaded.text} to {type_.llvm}")
        return self.let(type_, f"load {type_.llvm}, {operand}, align {type_.alignment}")

    def store(self, target: Operand, value: Value) -> None:
        """Write a value to a place."""
        type_ = target.type
        value = concrete(value, type_ if isinstance(type_, Scalar) else None)
        if isinstance(target, Value) or isinstance(type_, Atomic) or value.type != type_:
            raise self.fault(f"a value of type {value.type.llvm} cannot be assigned to {type_.llvm}")
        if isinstance(target, Lane):
            self.store(target.vector, self._with_component(self.load(target.vector), target.number, value))
        elif isinstance(type_, Array | Structure) and value.text == "zeroinitializer":
            self.run(f"llvm.memset.p{target.space}.i64", str(target), "i8 0", f"i64 {type_.size}", "i1 false")
        elif isinstance(type_, Array | Structure):
            for number, part in enumerate(self._parts(target)):
                self.store(part, self.let(part.type, f"extractvalue {value}, {number}"))
        elif isinstance(type_, Vector) and type_.element is BOOL:  # a byte each, so that a component has an address
            stored = self.let(type_, f"zext {value} to <{type_.lanes} x i8>")
            self.do(f"store <{type_.lanes} x i8> {stored.text}, {target}, align 1")
        else:
            self.do(f"store {value}, {target}, align {type_.alignment}")

    def _parts(self, place: Place) -> list[Place]:
        """Return the places of all elements or members."""
        if isinstance(place.type, Structure):
            return [self.member(place, number) for number in range(len(place.type.members))]
        assert isinstance(place.type, Array)
        if place.type.length is None:
            raise self.fault("an array without a length is no value")
        parts = [self.element(place, constant(U32, number)) for number in range(place.type.length)]
        return [part for part in parts if isinstance(part, Place)]

    def member(self, place: Place, number: int) -> Place:
        """Return the place of a member of a structure."""
        assert isinstance(place.type, Structure)
        pointer = self.let(place.type, f"getelementptr inbounds i8, {place}, i64 {place.type.offsets[number]}").text
        return Place(place.type.members[number][1], pointer, place.space)

    def element(self, operand: Operand, index: Value) -> Operand:
        """Return an element of an array, or a component of a vector.

        It is a place where the operand is, else a value.
        """
        type_, index = operand.type, concrete(index)
        if isinstance(operand, Value) and isinstance(type_, Array):
            if index.number is not None:
                return self.let(type_.element, f"extractvalue {operand}, {index.number}")
            copy = self.variable(type_)
            self.store(copy, operand)
            operand = copy
        if isinstance(operand, Value):
            return self.component(operand, index)
        if isinstance(operand, Lane) or not isinstance(type_, Array | Vector):
            raise self.fault(f"{type_.llvm} has no elements")
        if isinstance(type_, Vector) and operand.space == OWN:  # whole vectors become registers
            return Lane(type_.element, operand, index)
        is_signed = element_of(index.type).kind == "int"
        place = str(index.number) if index.number is not None else self._widened(index, is_signed)
        if self._is_checked:
            self._check(operand, place)
        pointer = self.let(type_, f"getelementptr inbounds {memory_type(type_.element)}, {operand}, i64 {place}").text
        return Place(type_.element, pointer, operand.space)

    def _check(self, place: Place, index: str) -> None:
        """End the kernel if an index is out of the range of an array or a vector."""
        if isinstance(place.type, Array) and place.type.length is None:
            count = self.length(place).text
        else:
            count = str(place.type.length if isinstance(place.type, Array) else place.type.lanes if isinstance(place.type, Vector) else 0)
        is_inside = self.let(BOOL, f"icmp ult i64 {index}, {count}")
        outside, inside = self.fresh("outside"), self.fresh("inside")
        self.end(f"br i1 {is_inside.text}, label %{inside}, label %{outside}")
        self.begin(outside)
        self.run("llvm.trap")
        self.begin(inside)

    def length(self, place: Place) -> Value:
        """Return the number of elements of a binding, by its bytes."""
        assert isinstance(place.type, Array)
        return self.binary("/", Value(U64, f"{place.pointer}.bytes"), constant(U64, place.type.stride))

    def _widened(self, index: Value, is_signed: bool) -> str:
        return index.text if index.type.llvm == "i64" else self.let(U64, f"{'sext' if is_signed else 'zext'} {index} to i64").text

    # vectors and structures

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a vector of equal components."""
        type_ = Vector(element_of(value.type), lanes)
        if is_constant(value):
            return Value(type_, f"<{', '.join([str(value)] * lanes)}>")
        first = self.let(type_, f"insertelement {type_.llvm} poison, {value}, i32 0")
        return self.let(type_, f"shufflevector {first}, {type_.llvm} poison, <{lanes} x i32> zeroinitializer")

    def composite(self, type_: Vector | Array | Structure, parts: Sequence[Value]) -> Value:
        """Return a vector, an array or a structure of its parts."""
        if all(map(is_constant, parts)):
            opening, closing = ("<", ">") if isinstance(type_, Vector) else ("[", "]") if isinstance(type_, Array) else ("{", "}")
            return Value(type_, f"{opening}{', '.join(map(str, parts))}{closing}")
        result = Value(type_, "poison")
        for number, part in enumerate(parts):
            place = f"insertelement {result}, {part}, i32" if isinstance(type_, Vector) else f"insertvalue {result}, {part},"
            result = self.let(type_, f"{place} {number}")
        return result

    def component(self, vector: Value, index: Value) -> Value:
        """Return a component.

        An unknown one is selected: vectors are in registers, which have no addresses.
        """
        type_ = vector.type
        if not isinstance(type_, Vector):
            raise self.fault(f"{type_.llvm} has no components")
        if index.number is not None:
            return self.let(type_.element, f"extractelement {vector}, i32 {index.number}")
        result = self.component(vector, constant(U32, 0))
        for lane in range(1, type_.lanes):
            result = self.select(self._is_lane(index, lane), self.component(vector, constant(U32, lane)), result)
        return result

    def components(self, value: Value) -> list[Value]:
        """Return all components of a vector; a scalar is its only one."""
        if not isinstance(value.type, Vector):
            return [value]
        return [self.component(value, constant(U32, lane)) for lane in range(value.type.lanes)]

    def _with_component(self, vector: Value, index: Value, value: Value) -> Value:
        assert isinstance(vector.type, Vector)
        if index.number is not None:
            return self.let(vector.type, f"insertelement {vector}, {value}, i32 {index.number}")
        lanes = enumerate(self.components(vector))
        return self.composite(vector.type, [self.select(self._is_lane(index, lane), value, old) for lane, old in lanes])

    def _is_lane(self, index: Value, lane: int) -> Value:
        return self.let(BOOL, f"icmp eq {index}, {lane}")

    def by_component(self, operate: Callable[..., Value], *operands: Value) -> Value:
        """Apply a function of scalars to each component."""
        results = [operate(*scalars) for scalars in zip(*map(self.components, operands), strict=True)]
        type_ = operands[0].type
        return self.composite(Vector(element_of(results[0].type), type_.lanes), results) if isinstance(type_, Vector) else results[0]

    # operators

    def unify(self, *operands: Value) -> list[Value]:
        """Give operands one type.

        Literals take that of the others, scalars become vectors.
        """
        types = [operand.type for operand in operands]
        scalars = [element_of(type_) for type_ in types]
        scalar = next((s for s in scalars if not s.is_abstract), None)
        if scalar is None:
            scalar = ABSTRACT_FLOAT if ABSTRACT_FLOAT in scalars else ABSTRACT_INT
        vector = next((type_ for type_ in types if isinstance(type_, Vector)), None)
        results = [concrete(operand, scalar) for operand in operands]
        if any(element_of(value.type) != scalar for value in results):
            raise self.fault(f"operands of types {', '.join(s.name for s in scalars)}")
        return [self.splat(v, vector.lanes) if vector and not isinstance(v.type, Vector) else v for v in results]

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """Return `yes` where the condition holds, else `no`."""
        return self.let(yes.type, f"select {condition}, {yes}, {no}")

    def negated(self, x: Value) -> Value:
        """Return -x."""
        if x.number is not None:
            return constant(element_of(x.type), -x.number)
        if element_of(x.type).kind == "float":
            return self.let(x.type, f"fneg {x}")
        return self.let(x.type, f"sub {zero(x.type)}, {x.text}")

    def inverted(self, x: Value) -> Value:
        """Return the complement of truth values, or of all bits."""
        x = concrete(x)
        if isinstance(x.type, Scalar) and x.number is not None:
            return constant(x.type, not x.number if x.type is BOOL else ~int(x.number))
        return self.let(x.type, f"xor {x}, {self._all(constant(element_of(x.type), -1), x.type).text}")

    def _all(self, scalar: Value, type_: Type) -> Value:
        return self.splat(scalar, type_.lanes) if isinstance(type_, Vector) else scalar

    def binary(self, operator: str, x: Value, y: Value) -> Value:
        """Return the result of an operator other than `&&` and `||`."""
        if operator in ("<<", ">>"):
            return self._shifted(operator, concrete(x), concrete(y, U32))
        x, y = self.unify(x, y)
        scalar = element_of(x.type)
        if x.number is not None and y.number is not None and (scalar.kind != "float" or scalar.is_abstract):
            folded = self._folded(operator, scalar, x.number, y.number)
            if folded is not None:
                return folded
        x, y = concrete(x), concrete(y)
        scalar = element_of(x.type)
        if operator in _COMPARISONS:
            return self._compared(operator, x, y)
        if scalar.kind == "float":
            if operator == "%":
                whole = self.intrinsic(x.type, f"llvm.trunc.{suffix(x.type)}", self.binary("/", x, y))
                return self.binary("-", x, self.binary("*", y, whole))
            instruction = _FLOATS.get(operator)
        else:
            if operator in ("/", "%"):
                return self._divided(operator, x, y)
            instruction = _INTEGERS.get(operator)
        if instruction is None:
            raise self.fault(f"the operator {operator} of {x.type.llvm}")
        return self.let(x.type, f"{instruction} {x}, {y.text}")

    def _folded(self, operator: str, scalar: Scalar, x: float, y: float) -> Value | None:
        if operator in _FOLDED:
            return constant(BOOL if operator in _COMPARISONS else scalar, _FOLDED[operator](x, y))  # type: ignore[arg-type]
        if operator in ("/", "%") and y and scalar.kind != "float":
            quotient = abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
            return constant(scalar, quotient if operator == "/" else x - y * quotient)
        return constant(scalar, x / y) if operator == "/" and y else None

    def _shifted(self, operator: str, x: Value, count: Value) -> Value:
        """Shift by a count modulo the width."""
        scalar = element_of(x.type)
        if isinstance(x.type, Vector) and not isinstance(count.type, Vector):
            count = self.splat(count, x.type.lanes)
        if count.number is not None:
            count = Value(with_element(count.type, scalar), str(int(count.number) % scalar.bits))
        else:
            count = self.convert(U64 if scalar.bits == 64 else U32, count)
            count = self.binary("&", count, constant(element_of(count.type), scalar.bits - 1))
        instruction = "shl" if operator == "<<" else "ashr" if scalar.kind == "int" else "lshr"
        return self.let(x.type, f"{instruction} {x}, {count.text}")

    def _compared(self, operator: str, x: Value, y: Value) -> Value:
        scalar, name = element_of(x.type), _COMPARISONS[operator]
        if scalar.kind == "float":
            instruction = f"fcmp {'une' if operator == '!=' else f'o{name}'}"
        else:
            sign = "" if operator in ("==", "!=") else "s" if scalar.kind == "int" else "u"
            instruction = f"icmp {sign}{name}"
        return self.let(with_element(x.type, BOOL), f"{instruction} {x}, {y.text}")

    def _divided(self, operator: str, x: Value, y: Value) -> Value:
        """Divide integers: by 0, and the least by -1, as by 1."""
        scalar = element_of(x.type)
        is_signed = scalar.kind == "int"
        if y.number in (None, 0) or (is_signed and y.number == -1):
            is_undefined = self.binary("==", y, zero(y.type))
            if is_signed:
                is_least = self.binary("==", x, self._all(constant(scalar, 1 << (scalar.bits - 1)), x.type))
                is_minus_one = self.binary("==", y, self._all(constant(scalar, -1), y.type))
                is_undefined = self.binary("|", is_undefined, self.binary("&", is_least, is_minus_one))
            y = self.select(is_undefined, self._all(constant(scalar, 1), y.type), y)
        return self.let(x.type, f"{'s' if is_signed else 'u'}{'div' if operator == '/' else 'rem'} {x}, {y.text}")

    # conversions

    def convert(self, scalar: Scalar, value: Value) -> Value:
        """Return numbers of a type with the same values, or the nearest."""
        source = element_of(value.type)
        if value.number is not None and (source.is_abstract or source.kind != "float"):
            return constant(scalar, saturated(scalar, value.number) if source.kind == "float" else value.number)
        if source == scalar:
            return value
        type_ = with_element(value.type, scalar)
        if scalar is BOOL:
            return self.binary("!=", value, zero(value.type))
        if source.kind == "float" and scalar.kind != "float":
            return self.by_component(lambda x: self._truncated(scalar, x), value)
        if scalar.kind == "float" == source.kind:
            instruction = "fpext" if scalar.bits > source.bits else "fptrunc"
        elif scalar.kind == "float":
            instruction = "sitofp" if source.kind == "int" else "uitofp"
        elif scalar.bits == source.bits:
            return value._replace(type=type_)
        else:
            instruction = "trunc" if scalar.bits < source.bits else "sext" if source.kind == "int" else "zext"
        return self.let(type_, f"{instruction} {value} to {type_.llvm}")

    def _truncated(self, scalar: Scalar, x: Value) -> Value:
        """Return a float as an integer, toward zero, within the range of its type.

        NaN gives 0.
        """
        if element_of(x.type).bits == 16:
            x = self.convert(F32, x)
        names = {32: {"int": "i", "uint": "ui"}, 64: {"int": "ll", "uint": "ull"}}[scalar.bits]
        source = "d" if element_of(x.type).bits == 64 else "f"
        result = self.intrinsic(scalar, f"llvm.nvvm.{source}2{names[scalar.kind]}.rz", x)
        if source == "f" and scalar.bits == 32:
            return result
        return self.select(self.binary("==", x, x), result, constant(scalar, 0))  # the instruction sets the highest bit

    def bitcast(self, type_: Type, value: Value) -> Value:
        """Return the value of a type that has the same bits."""
        value = concrete(value)
        if type_ == value.type:
            return value
        if type_.llvm == value.type.llvm:  # integers of the other sign
            return Value(type_, value.text, None if value.number is None else wrapped(element_of(type_), int(value.number)))
        if is_constant(value):
            return Value(type_, f"bitcast ({value} to {type_.llvm})")
        return self.let(type_, f"bitcast {value} to {type_.llvm}")
