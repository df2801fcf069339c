"""Expressions of WGSL as values, and places in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from volta_fn.targets.nvidia.translation import builtins
from volta_fn.targets.nvidia.translation.syntax import Binary, Call, Expression, Index, Literal, Member, Name, TypeName, Unary
from volta_fn.targets.nvidia.translation.types import (
    ABSTRACT_FLOAT,
    ABSTRACT_INT,
    BOOL,
    F16,
    F32,
    I32,
    SCALARS,
    SUFFIXES,
    U32,
    Array,
    Atomic,
    Scalar,
    Structure,
    Type,
    Vector,
    default_type,
    element_of,
)
from volta_fn.targets.nvidia.translation.values import GLOBAL, Instructions, Operand, Place, Value, concrete, constant, zero

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
            return builtins.atomic(self, name.removeprefix("atomic"), self.operand(pointer), [self.value(x) for x in others])
        if name in ("workgroupBarrier", "storageBarrier"):
            builtins.barrier(self)
            return None
        if name == "workgroupUniformLoad":
            place = self.operand(call.arguments[0])
            builtins.barrier(self)
            if isinstance(place.type, Atomic):
                result = builtins.atomic(self, "Load", place, [])
            else:
                result = self.load(place)
            builtins.barrier(self)
            return result
        if name == "arrayLength":
            return self._array_length(call.arguments[0])
        values = [self.value(argument) for argument in call.arguments]
        if name.startswith("subgroup"):
            return builtins.Subgroup(self, self._names.invocations).call(name.removeprefix("subgroup"), values)
        result = builtins.call(self, name, values)
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
