"""From the JSON of a manifest to a program, checked.

A file may hold anything: whatever is wrong with it raises `CorruptFileError` before the program runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from volta_fn.core.array import ConcreteArray, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.check import check_jaxpr
from volta_fn.core.dimension import Dimension
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.errors import CorruptFileError, ShapeError, VoltaError
from volta_fn.export.parameters import check_parameters
from volta_fn.export.primitive_names import declare_all
from volta_fn.export.values import decode, decode_aval

#: What wrong JSON leads to, in code that takes it to be right; the rules of primitives may raise anything of these.
_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError, VoltaError)


def read_program(manifest: Mapping[str, Any], constants: Sequence[Any], sizes: Mapping[str, int]) -> ClosedJaxpr:
    """Return the main program of a manifest for given sizes of its symbolic axes.

    Raises `CorruptFileError` if it is not a program.
    """
    try:
        return _Reader(manifest["programs"], constants, sizes).program(manifest["main"])
    except _WRONG as error:
        if sizes:
            raise ShapeError(f"the exported function has no program for the sizes {dict(sizes)}: {_first_line(error)}") from error
        raise CorruptFileError(f"the exported function is damaged: {_first_line(error)}") from error


def read_constants(types: Any, chunks: Sequence[bytes]) -> list[ConcreteArray]:
    """Return the constants of a file from their types and bytes."""
    try:
        return [_constant(decode_aval(kind), chunk) for kind, chunk in zip(types, chunks, strict=True)]
    except _WRONG as error:
        raise CorruptFileError(f"the exported function is damaged: {_first_line(error)}") from error


def _constant(aval: ShapedArray, chunk: bytes) -> ConcreteArray:
    if aval.nbytes != len(chunk):
        raise CorruptFileError(f"a constant of type {aval} has {len(chunk)} bytes")
    return from_host(_array(aval, chunk), aval.weak_type)


def _array(aval: ShapedArray, content: bytes) -> np.ndarray:
    if aval.dtype == np.bool_ and any(byte > 1 for byte in content):
        raise CorruptFileError("a boolean has a byte other than 0 and 1")
    if not aval.dtype.itemsize:
        return np.zeros(aval.shape, aval.dtype)
    return np.frombuffer(bytearray(content), aval.dtype).reshape(aval.shape)


class _Reader:
    def __init__(self, programs: Sequence[Any], constants: Sequence[Any], sizes: Mapping[str, int]) -> None:
        self._texts, self._constants, self._sizes = programs, constants, sizes
        self._made: dict[int, ClosedJaxpr] = {}

    def program(self, number: Any) -> ClosedJaxpr:
        """Return the program of a number; programs call only those before them."""
        if type(number) is not int or not 0 <= number < len(self._texts):
            raise CorruptFileError(f"there is no program {number!r:.40}")
        for i in range(number + 1):
            if i not in self._made:
                self._made[i] = self._checked(self._program(self._texts[i]))
        return self._made[number]

    def _checked(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        check_jaxpr(closed)
        return closed

    def _called(self, number: Any) -> ClosedJaxpr:
        return self._made[number]

    def _program(self, text: Mapping[str, Any]) -> ClosedJaxpr:
        constants = [self._constants[_natural(number)] for number in text["constants"]]
        constvars = [Var(c.aval) for c in constants]
        invars = self._variables(text["inputs"])
        bound: list[Var] = [*constvars, *invars]

        def read(operands: Sequence[Any]) -> list[Atom]:
            return [self._literal(o) if isinstance(o, dict) else bound[_natural(o)] for o in operands]

        equations = []
        for name, operands, types, params in text["equations"]:
            atoms, outvars = read(operands), self._variables(types)
            values = {key: decode(self._sized(value), self._called) for key, value in params.items()}
            equations.append(Equation(_primitive(name, values), atoms, outvars, values))
            bound += outvars
        return ClosedJaxpr(Jaxpr(constvars, invars, read(text["outputs"]), equations), constants)

    def _variables(self, types: Sequence[Any]) -> list[Var]:
        return [Var(decode_aval(self._sized(kind))) for kind in types]

    def _literal(self, operand: Mapping[str, Any]) -> Literal:
        kind, content = operand["literal"]
        aval = decode_aval(kind)
        if isinstance(content, dict):
            return Literal(from_host(np.asarray(self._number(content), aval.dtype), aval.weak_type))
        return Literal(_constant(aval, bytes.fromhex(content)))

    def _number(self, content: Mapping[str, Any]) -> Any:
        """Return a literal that depends on sizes: a number times, or divided by, a size."""
        ((kind, (factor, terms)),) = content.items()
        value = dimension_of(terms).evaluate(self._sizes)
        number = float.fromhex(factor)
        return {"times": number * float(value), "over": number / float(value) if value else math.inf}[kind]

    def _sized(self, value: Any) -> Any:
        """Replace symbolic sizes by numbers."""
        if isinstance(value, list):
            return [self._sized(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"dim"}:
            found = dimension_of(value["dim"]).evaluate(self._sizes)
            if found.denominator != 1:
                raise ShapeError(f"the size {dimension_of(value['dim'])} is no integer")
            return int(found)
        return {key: self._sized(item) for key, item in value.items()}


def dimension_of(terms: Any) -> Dimension:
    """Return the polynomial of [[coefficient, [[name, exponent], …]], …]."""
    return Dimension({tuple([(str(n), _natural(e)) for n, e in monomial]): Fraction(c) for c, monomial in terms})


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise CorruptFileError(f"{value!r:.40} is no natural number")
    return value


def _primitive(name: Any, params: Mapping[str, Any]) -> Primitive:
    """Return a primitive that takes these parameters."""
    found = PRIMITIVES.get(name)
    if found is None:
        declare_all()
        found = PRIMITIVES.get(name)
    if found is None or found.effectful or found.expand is not None:
        raise CorruptFileError(f"this version of volta_fn has no primitive {name!r:.40} for files")
    check_parameters(found, params)
    return found


def _first_line(error: BaseException) -> str:
    text = error.message if isinstance(error, VoltaError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0][:200]
