"""Expressions of WGSL as values, places in memory, and built-in functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from volta_fn.targets.nvidia.translation.syntax import Binary, Call, Expression, Index, Literal, Member, Name, TypeName, Unary
from volta_fn.targets.nvidia.translation.values import (
    ABSTRACT_FLOAT,
    ABSTRACT_INT,
    BOOL,
    F16,
    F32,
    F64,
    GLOBAL,
    I32,
    SCALARS,
    SHARED,
    SUFFIXES,
    U32,
    Array,
    Atomic,
    Instructions,
    Operand,
    Place,
    Scalar,
    Structure,
    Type,
    Value,
    Vector,
    concrete,
    constant,
    default_type,
    element_of,
    suffix,
    zero,
)

# Built-in functions.

#: Invocations of a subgroup.
SUBGROUP = 32

Builtin = Callable[..., Value]


def _splat(i: Instructions, model: Value, number: float) -> Value:
    """Return a number as a value of another's type."""
    scalar = constant(element_of(model.type), number)
    return i.splat(scalar, model.type.lanes) if isinstance(model.type, Vector) else scalar


def _of_integers_or_floats(name: str, floats: str = "") -> Builtin:
    """Return a function whose intrinsics depend on the kind of numbers."""

    def call(i: Instructions, *operands: Value) -> Value:
        kind = element_of(operands[0].type).kind
        prefix = floats or name if kind == "float" else f"{'s' if kind == 'int' else 'u'}{name}"
        return i.intrinsic(operands[0].type, f"llvm.{prefix}.{suffix(operands[0].type)}", *operands)

    return call


def _same(name: str) -> Builtin:
    """Return a function that LLVM has for every type."""
    return lambda i, *operands: i.intrinsic(operands[0].type, f"llvm.{name}.{suffix(operands[0].type)}", *operands)


# Numbers. Those of the least and the greatest of two numbers ignore NaN, and take -0.0 for less than 0.0.

_min, _max = _of_integers_or_floats("min", "minimumnum"), _of_integers_or_floats("max", "maximumnum")


def _clamp(i: Instructions, x: Value, low: Value, high: Value) -> Value:
    return _min(i, _max(i, x, low), high)


def _abs(i: Instructions, x: Value) -> Value:
    kind = element_of(x.type).kind
    if kind == "float":
        return i.intrinsic(x.type, f"llvm.fabs.{suffix(x.type)}", x)
    return x if kind == "uint" else i.intrinsic(x.type, f"llvm.abs.{suffix(x.type)}", x, "i1 false")


def _dot(i: Instructions, x: Value, y: Value) -> Value:
    first, *others = i.components(i.binary("*", x, y))
    for term in others:
        first = i.binary("+", first, term)
    return first


# Functions that WGSL lets devices approximate. They are of float32; float16 is computed in it.


def _approximate(name: str) -> Builtin:
    def call(i: Instructions, x: Value) -> Value:
        def scalar(x: Value) -> Value:
            if x.type is F64:
                raise i.fault("approximations are of float32 and float16 alone")
            return i.convert(element_of(x.type), i.intrinsic(F32, f"llvm.nvvm.{name}.approx.f", i.convert(F32, x)))

        return i.by_component(scalar, x)

    return call


_exp2, _log2 = map(_approximate, ("ex2", "lg2"))


def _exp(i: Instructions, x: Value) -> Value:
    return _exp2(i, i.binary("*", x, _splat(i, x, math.log2(math.e))))


# Bits.


def _zeros(name: str) -> Builtin:
    return lambda i, x: i.intrinsic(x.type, f"llvm.{name}.{suffix(x.type)}", x, "i1 false")


def _first_trailing_bit(i: Instructions, x: Value) -> Value:
    """Return the number of the lowest bit that is 1; -1 of 0."""
    return i.select(i.binary("==", x, zero(x.type)), _splat(i, x, -1), _zeros("cttz")(i, x))


#: Functions of operands of one type, by name: those that the package's shaders call.
_FUNCTIONS: dict[str, Builtin] = {
    "min": _min, "max": _max, "clamp": _clamp, "abs": _abs, "floor": _same("floor"), "ceil": _same("ceil"), "trunc": _same("trunc"),
    "round": _same("roundeven"), "sqrt": _same("sqrt"), "fma": _same("fma"), "dot": _dot, "exp": _exp, "log2": _log2,
    "countOneBits": _same("ctpop"), "countLeadingZeros": _zeros("ctlz"), "firstTrailingBit": _first_trailing_bit,
}  # fmt: skip


def builtin(i: Instructions, name: str, operands: Sequence[Value]) -> Value | None:
    """Return the result of a function of numbers; None if the name is unknown."""
    if name == "select":
        no, yes = i.unify(*operands[:2])
        return i.select(operands[2], concrete(yes), concrete(no))
    function = _FUNCTIONS.get(name)
    return None if function is None else function(i, *map(concrete, i.unify(*operands)))


# Atomics and barriers. Atomics are relaxed: what else they order, barriers do.

_ATOMICS = {"Add": "add", "Sub": "sub", "Max": "max", "Min": "min", "And": "and", "Or": "or", "Xor": "xor", "Exchange": "xchg"}


def atomic(i: Instructions, name: str, place: Operand, operands: Sequence[Value]) -> Value | None:
    """Return the result of an atomic function, whose name follows `atomic`."""
    if not isinstance(place, Place) or not isinstance(place.type, Atomic):
        raise i.fault(f"atomic{name} needs the address of an atomic")
    scalar = place.type.element
    order = f'syncscope("{"block" if place.space == SHARED else "device"}") monotonic'
    values = [concrete(value, scalar) for value in operands]
    if name == "Load":
        return i.let(scalar, f"load atomic {scalar.llvm}, {place} {order}, align {scalar.alignment}")
    if name == "Store":
        i.do(f"store atomic {values[0]}, {place} {order}, align {scalar.alignment}")
        return None
    if name not in _ATOMICS:
        raise i.fault(f"atomic{name}")
    sign = "u" if scalar.kind == "uint" and name in ("Max", "Min") else ""
    return i.let(scalar, f"atomicrmw {sign}{_ATOMICS[name]} {place}, {values[0]} {order}")


_BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


def barrier(i: Instructions) -> None:
    """Append a barrier of the workgroup, which orders all memory.

    Of two in a row, one is enough.
    """
    if i.is_terminated or i.lines[-1:] != [_BARRIER]:
        i.run("llvm.nvvm.barrier.cta.sync.aligned.all", "i32 0")


# Subgroups: 32 invocations, or the whole workgroup where it has fewer.


class Subgroup:
    """The functions of subgroups in workgroups of a number of invocations."""

    def __init__(self, i: Instructions, invocations: int) -> None:
        self._i = i
        if invocations > SUBGROUP and invocations % SUBGROUP:
            raise i.fault(f"a workgroup of {invocations} invocations has no whole subgroups")
        self._size = min(invocations, SUBGROUP)
        self._mask = f"i32 {(1 << self._size) - 1 if self._size < SUBGROUP else -1}"

    def call(self, name: str, operands: Sequence[Value]) -> Value:
        """Return the result of a function, whose name follows `subgroup`."""
        i = self._i
        x, *others = [concrete(value) for value in operands]
        match name:
            case "Shuffle":
                return self._shuffle("idx", x, others[0])
            case "ShuffleXor":
                return self._shuffle("bfly", x, others[0])
            case "Ballot":
                word = i.intrinsic(U32, "llvm.nvvm.vote.ballot.sync", self._mask, x)
                return i.composite(Vector(U32, 4), [word, *[constant(U32, 0)] * 3])
            case "ExclusiveAdd":
                return self._preceding_sum(x)
            case "Add" if self._size.bit_count() == 1:
                for reach in [1 << k for k in reversed(range(self._size.bit_length() - 1))]:
                    x = i.binary("+", x, self._shuffle("bfly", x, constant(U32, reach)))
                return x
        raise i.fault(f"the function subgroup{name} of {self._size} invocations")

    def lane(self) -> Value:
        """Return the invocation's number in its subgroup."""
        return self._i.intrinsic(U32, "llvm.nvvm.read.ptx.sreg.laneid")

    def _preceding_sum(self, x: Value) -> Value:
        i, lane, reach = self._i, self.lane(), 1
        while reach < self._size:
            total = i.binary("+", x, self._shuffle("up", x, constant(U32, reach)))
            x = i.select(i.binary("<", lane, constant(U32, reach)), x, total)
            reach *= 2
        return i.select(i.binary("==", lane, constant(U32, 0)), zero(x.type), self._shuffle("up", x, constant(U32, 1)))

    def _shuffle(self, mode: str, x: Value, by: Value) -> Value:
        """Return a value of another invocation, in words of 32 bits."""
        i, scalar = self._i, element_of(x.type)
        if isinstance(x.type, Vector):
            return i.by_component(lambda component: self._shuffle(mode, component, by), x)
        if scalar is BOOL:
            return i.convert(BOOL, self._shuffle(mode, i.convert(U32, x), by))
        if scalar.bits == 64:
            halves = i.bitcast(Vector(U32, 2), x)
            return i.bitcast(scalar, self._shuffle(mode, halves, by))
        if scalar.bits == 16:
            return i.convert(F16, self._shuffle(mode, i.convert(F32, x), by))
        word = i.bitcast(U32, x)
        clamp = f"i32 {0 if mode == 'up' else SUBGROUP - 1}"
        return i.bitcast(scalar, i.intrinsic(U32, f"llvm.nvvm.shfl.sync.{mode}.i32", self._mask, word, by, clamp))


# Expressions.

#: Vectors by their short names: vec4f, vec2u, …
_SHORT_NAMES = {f"vec{n}{c}": Vector(scalar, n) for n in (2, 3, 4) for c, scalar in (("f", F32), ("h", F16), ("i", I32), ("u", U32))}


class Signature(NamedTuple):
    """A function that can be called: its parameters' types, and its result's."""

    parameters: tuple[Type, ...]
    result: Type | None
    #: The variables of the module that it uses, each as the function sees it: a place, or a value if no function writes it from here on.
    hidden: tuple[tuple[str, Place | Value], ...]


def hidden_texts(operand: Operand) -> list[str]:
    """Return the arguments, or the parameters, that pass a variable of the module.

    A binding is passed with its size.
    """
    if isinstance(operand, Place) and operand.space == GLOBAL:
        return [str(operand), f"i64 {operand.pointer}.bytes"]
    return [str(operand)]


@dataclass
class Names:
    """The names that a module declares, and the intrinsics that it calls."""

    #: Invocations of a workgroup.
    invocations: int
    #: Whether an index out of range ends the kernel.
    is_checked: bool = False
    types: dict[str, Type] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)
    #: Declarations of intrinsics.
    intrinsics: dict[str, str] = field(default_factory=dict)


class Expressions(Instructions):
    """The expressions of one function, or constants of the module."""

    def __init__(self, names: Names) -> None:
        super().__init__(names.intrinsics, is_checked=names.is_checked)
        self._names = names
        #: The variables by their names: those of the module, then those of each block around the current statement.
        self.scopes: list[dict[str, Operand]] = [{}]
        #: How often each function is called.
        self.calls: Counter[str] = Counter()

    # types

    def type_of(self, name: TypeName) -> Type:
        """Return the type that a name stands for."""
        type_ = self._find_type(name)
        if type_ is None:
            raise self.fault(f"the type {name.name}")
        return type_

    def _find_type(self, name: TypeName) -> Type | None:
        if not name.arguments:
            return SCALARS.get(name.name) or self._names.types.get(name.name) or _SHORT_NAMES.get(name.name)
        first, *others = name.arguments
        if name.name not in ("vec2", "vec3", "vec4", "atomic", "array") or not isinstance(first, TypeName):
            return None
        element = self.type_of(first)
        if name.name == "array":
            return Array(element, self._length(others[0]) if others else None)
        if not isinstance(element, Scalar):
            raise self.fault(f"{name.name} of {element.llvm}")
        return Atomic(element) if name.name == "atomic" else Vector(element, int(name.name[3]))

    def _length(self, argument: TypeName | Expression) -> int:
        length = self.value(Name(argument.name) if isinstance(argument, TypeName) else argument).number
        if length is None:
            raise self.fault("the length of an array is not constant")
        return int(length)

    # expressions

    def value(self, expression: Expression) -> Value:
        """Return the value of an expression; a literal may stay without a type."""
        return self.load(self.operand(expression))

    def condition(self, expression: Expression) -> Value:
        """Return a truth value."""
        value = self.value(expression)
        if value.type is not BOOL:
            raise self.fault(f"a condition of type {value.type.llvm}")
        return value

    def operand(self, expression: Expression) -> Operand:
        """Return the place of an expression that has one, else its value."""
        match expression:
            case Literal(number, suffix):
                scalar = SUFFIXES[suffix] if suffix else ABSTRACT_FLOAT if isinstance(number, float) else ABSTRACT_INT
                return constant(scalar, number)
            case Name(name):
                return self._named(name)
            case Unary("&" | "*", inner):  # a place is a pointer
                return self.operand(inner)
            case Unary("-", inner):
                return self.negated(self.value(inner))
            case Unary(_, inner):
                return self.inverted(self.value(inner))
            case Binary("&&" | "||" as operator, left, right):
                return self._short_circuit(operator, left, right)
            case Binary(operator, left, right):
                x = self.value(left)
                return self.binary(operator, x, self.value(right))
            case Index(base, index):
                operand = self.operand(base)
                return self.element(operand, self.value(index))
            case Member(base, name):
                return self._member(self.operand(base), name)
            case Call():
                result = self.call(expression)
                if result is None:
                    raise self.fault(f"{expression.callee.name} has no result")
                return result

    def _named(self, name: str) -> Operand:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        operand = self._names.operands.get(name)
        if operand is None:
            raise self.fault(f"the name {name}")
        return operand

    def _short_circuit(self, operator: str, left: Expression, right: Expression) -> Value:
        """Evaluate the right side only if it matters: it may read memory."""
        x = self.condition(left)
        start, other, end = self.label, self.fresh("other"), self.fresh("end")
        ways = f"label %{other}, label %{end}" if operator == "&&" else f"label %{end}, label %{other}"
        self.end(f"br i1 {x.text}, {ways}")
        self.begin(other)
        y = self.condition(right)
        last = self.label
        self.begin(end)
        return self.let(BOOL, f"phi i1 [{'false' if operator == '&&' else 'true'}, %{start}], [{y.text}, %{last}]")

    def _member(self, operand: Operand, name: str) -> Operand:
        type_ = operand.type
        if isinstance(type_, Structure):
            number = next((k for k, (member, _) in enumerate(type_.members) if member == name), None)
            if number is None:
                raise self.fault(f"{type_.name} has no member {name}")
            if isinstance(operand, Place):
                return self.member(operand, number)
            return self.let(type_.members[number][1], f"extractvalue {operand}, {number}")
        lanes = ["xyzwrgba".find(letter) % 4 for letter in name]
        if not isinstance(type_, Vector) or max(lanes) >= type_.lanes or not set(name) <= set("xyzwrgba"):
            raise self.fault(f"{type_.llvm} has no member {name}")
        if len(lanes) == 1:
            return self.element(operand, constant(U32, lanes[0]))
        vector = self.load(operand)
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        result = Vector(type_.element, len(lanes))
        return self.let(result, f"shufflevector {vector}, {vector.type.llvm} poison, <{len(lanes)} x i32> <{order}>")

    # calls

    def call(self, call: Call) -> Value | None:
        """Return the result of a call, if it has one."""
        name = call.callee.name
        if name in self._names.signatures:
            return self._call_function(name, call.arguments)
        if name == "bitcast":
            (argument,), (type_,) = call.arguments, call.callee.arguments
            assert isinstance(type_, TypeName)
            return self.bitcast(self.type_of(type_), self.value(argument))
        constructed = self._constructed(call)
        if constructed is not None:
            return constructed
        if name.startswith("atomic"):
            pointer, *others = call.arguments
            return atomic(self, name.removeprefix("atomic"), self.operand(pointer), [self.value(x) for x in others])
        if name in ("workgroupBarrier", "storageBarrier"):
            barrier(self)
            return None
        if name == "workgroupUniformLoad":
            place = self.operand(call.arguments[0])
            barrier(self)
            if isinstance(place.type, Atomic):
                result = atomic(self, "Load", place, [])
            else:
                result = self.load(place)
            barrier(self)
            return result
        if name == "arrayLength":
            return self._array_length(call.arguments[0])
        values = [self.value(argument) for argument in call.arguments]
        if name.startswith("subgroup"):
            return Subgroup(self, self._names.invocations).call(name.removeprefix("subgroup"), values)
        result = builtin(self, name, values)
        if result is None:
            raise self.fault(f"the function {name}")
        return result

    def _call_function(self, name: str, arguments: Sequence[Expression]) -> Value | None:
        signature = self._names.signatures[name]
        if len(arguments) != len(signature.parameters):
            raise self.fault(f"{name} has {len(signature.parameters)} parameters")
        texts = []
        for argument, type_ in zip(arguments, signature.parameters, strict=True):
            value = concrete(self.value(argument), type_ if isinstance(type_, Scalar) else None)
            if value.type != type_:
                raise self.fault(f"an argument of type {value.type.llvm} for {type_.llvm}")
            texts.append(str(value))
        for variable, parameter in signature.hidden:
            operand = self.scopes[0].get(variable, self._names.operands[variable])
            texts += hidden_texts(self.load(operand) if isinstance(parameter, Value) else operand)
        self.calls[name] += 1
        text = f"@f.{name}({', '.join(texts)})"
        if signature.result is None:
            self.do(f"call void {text}")
            return None
        return self.let(signature.result, f"call {signature.result.llvm} {text}")

    def _constructed(self, call: Call) -> Value | None:
        """Return a value of a type, if the call names one."""
        name, arguments = call.callee, call.arguments
        is_inferred = name.name in ("vec2", "vec3", "vec4", "array") and not name.arguments
        type_ = None if is_inferred else self._find_type(name)
        if type_ is None and not is_inferred:
            return None
        parts = [self.value(argument) for argument in arguments]
        if type_ is None:
            type_ = self._inferred(name.name, parts)
        if not parts:
            return zero(type_)
        if isinstance(type_, Scalar):
            return self.convert(type_, parts[0])
        if isinstance(type_, Vector):
            return self._vector(type_, parts)
        if isinstance(type_, Atomic):
            raise self.fault("an atomic is no value")
        types = [type_.element] * len(parts) if isinstance(type_, Array) else [member for _, member in type_.members]
        parts = [concrete(part, member if isinstance(member, Scalar) else None) for part, member in zip(parts, types, strict=True)]
        if [part.type for part in parts] != types:
            raise self.fault(f"the parts of {type_.llvm} have other types")
        return self.composite(type_, parts)

    def _inferred(self, name: str, parts: Sequence[Value]) -> Type:
        types = [part.type for part in parts]
        literal = default_type(ABSTRACT_FLOAT if ABSTRACT_FLOAT in types else ABSTRACT_INT)
        if name == "array":
            return Array(next((type_ for type_ in types if type_ not in (ABSTRACT_INT, ABSTRACT_FLOAT)), literal), len(parts))
        scalars = [element_of(type_) for type_ in types]
        return Vector(next((scalar for scalar in scalars if not scalar.is_abstract), literal), int(name[3]))

    def _vector(self, type_: Vector, parts: Sequence[Value]) -> Value:
        if len(parts) == 1:
            value = self.convert(type_.element, parts[0])
            return value if isinstance(value.type, Vector) else self.splat(value, type_.lanes)
        scalars = [concrete(scalar, type_.element) for part in parts for scalar in self.components(part)]
        if len(scalars) != type_.lanes or any(scalar.type != type_.element for scalar in scalars):
            raise self.fault(f"the components of {type_.llvm}")
        return self.composite(type_, scalars)

    def _array_length(self, argument: Expression) -> Value:
        place = self.operand(argument)
        if not isinstance(place, Place) or not isinstance(place.type, Array) or place.type.length is not None:
            raise self.fault("arrayLength needs the address of an array in storage")
        return self.convert(U32, self.length(place))
