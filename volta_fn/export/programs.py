"""Programs in files: as JSON, and back, checked, and the files themselves.

A file is a safetensors file with a manifest in JSON (docs/export.md).
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from volta_fn import primitives
from volta_fn.core.arrays.array import ConcreteArray, from_host, host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import Dimension, Size
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, called_program, check_jaxpr
from volta_fn.core.primitive import PRIMITIVES, Primitive
from volta_fn.errors import ArgumentTypeError, CorruptFileError, ExportError, SerializationError, ShapeError
from volta_fn.export.values import (
    INVALID,
    UnstorableError,
    check_parameters,
    damaged,
    decode,
    decode_aval,
    dimension_of,
    dtype_named,
    encode,
    encode_aval,
    first_line,
    natural_number,
)
from volta_fn.io.files import LENGTH_BYTES, Header, header_length, parse_header, parse_json, serialized
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import call_params, jit_p

# From a program to the JSON of a manifest.
#
# Derivative rules are Python functions and are not written: of a call with rules, only the called program is.

#: Calls that are written as they are: targets recognise those of attention by name, and have routines for them.
_PLAIN_CALLS = frozenset({"attention", "attention_tangent", "attention_gradient", "jit"})


class ProgramWriter:
    """Writes programs, each once, those that a program calls before it."""

    def __init__(self) -> None:
        #: The JSON of the programs so far, by number.
        self.programs: list[dict[str, Any]] = []
        #: The constants of all programs, and their types in JSON.
        self.constants: list[np.ndarray] = []
        self.types: list[Any] = []
        #: The numbers of programs, and of constants by identity.
        self._program_numbers: dict[ClosedJaxpr, int] = {}
        self._constant_numbers: dict[int, int] = {}

    def write(self, closed: ClosedJaxpr) -> int:
        """Write a program, unless it has been, and return its number."""
        if closed not in self._program_numbers:
            program = self._program(closed)
            self._program_numbers[closed] = len(self.programs)
            self.programs.append(program)
        return self._program_numbers[closed]

    def _program(self, closed: ClosedJaxpr) -> dict[str, Any]:
        jaxpr = closed.jaxpr
        numbers: dict[Atom, int] = {}

        def bind(variables: Sequence[Var]) -> list[Any]:
            for variable in variables:
                numbers[variable] = len(numbers)
            return [encode_aval(v.aval) for v in variables]

        def read(atoms: Sequence[Atom]) -> list[Any]:
            return [_literal(a) if isinstance(a, Literal) else numbers[a] for a in atoms]

        bind(jaxpr.constvars)
        constants, inputs = [self._constant(c) for c in closed.consts], bind(jaxpr.invars)
        equations = []
        for eqn in map(without_rules, jaxpr.eqns):
            operands, params = read(eqn.invars), self._params(eqn)
            equations.append([eqn.primitive.name, operands, bind(eqn.outvars), params])
        return {"constants": constants, "inputs": inputs, "equations": equations, "outputs": read(jaxpr.outvars)}

    def _params(self, eqn: Equation) -> dict[str, Any]:
        if eqn.primitive.effectful or "callback" in eqn.params:
            raise ExportError(f"{_where(eqn)} calls a Python function, which a file cannot hold; leave it out of the exported function")
        try:
            return {name: encode(value, self.write) for name, value in sorted(eqn.params.items())}
        except UnstorableError as error:
            raise ExportError(f"{_where(eqn)} holds {error}, which a file cannot") from error

    def _constant(self, value: Any) -> int:
        if id(value) not in self._constant_numbers:
            if not isinstance(value, ConcreteArray):
                raise ExportError("an exported function cannot depend on traced arrays; export it outside of transforms")
            self._constant_numbers[id(value)] = len(self.constants)
            self.constants.append(np.asarray(host_buffer(value)))
            self.types.append(encode_aval(value.aval))
        return self._constant_numbers[id(value)]


def without_rules(eqn: Equation) -> Equation:
    """Replace a call that has rules in Python by a plain call of its program."""
    if eqn.primitive.name in _PLAIN_CALLS:
        return eqn
    called = called_program(eqn)
    if called is None:
        return eqn
    operands = eqn.invars[len(eqn.invars) - len(called.invars) :]
    return Equation(jit_p, operands, eqn.outvars, call_params(called, eqn.primitive.name), eqn.position)


def _literal(literal: Literal) -> dict[str, Any]:
    buffer = np.asarray(host_buffer(literal.val))
    return {"literal": [encode_aval(literal.aval), buffer.tobytes().hex()]}


def _where(eqn: Equation) -> str:
    return f"{eqn.primitive.name}{'' if eqn.source is None else f' (from {eqn.source})'}"


# From the JSON of a manifest to a program, checked.
#
# A file may hold anything: any invalid content raises `CorruptFileError` before the program runs.


def read_program(manifest: Mapping[str, Any], constants: Sequence[Any], sizes: Mapping[str, Size]) -> ClosedJaxpr:
    """Return the main program of a manifest for given sizes of its symbolic axes.

    The sizes may be symbolic themselves. Raises `CorruptFileError` if it is not a program.
    """
    try:
        return _Reader(manifest["programs"], constants, sizes).program(manifest["main"])
    except INVALID as error:
        if sizes:
            raise ShapeError(f"the exported function has no program for the sizes {dict(sizes)}: {first_line(error)}") from error
        raise damaged(error) from error


def read_constants(types: Any, chunks: Sequence[bytes]) -> list[ConcreteArray]:
    """Return the constants of a file from their types and bytes."""
    try:
        return [_constant(decode_aval(kind), chunk) for kind, chunk in zip(types, chunks, strict=True)]
    except INVALID as error:
        raise damaged(error) from error


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
    """Reads programs, each once, for sizes of their symbolic axes."""

    def __init__(self, programs: Sequence[Any], constants: Sequence[Any], sizes: Mapping[str, Size]) -> None:
        self._json, self._constants, self._sizes = programs, constants, sizes
        self._programs: dict[int, ClosedJaxpr] = {}

    def program(self, number: Any) -> ClosedJaxpr:
        """Return the program of a number; programs call only those before them."""
        if type(number) is not int or not 0 <= number < len(self._json):
            raise CorruptFileError(f"there is no program {number!r:.40}")
        for i in range(number + 1):
            if i not in self._programs:
                closed = self._program(self._json[i])
                check_jaxpr(closed)
                self._programs[i] = closed
        return self._programs[number]

    def _program(self, text: Mapping[str, Any]) -> ClosedJaxpr:
        constants = [self._constants[natural_number(number)] for number in text["constants"]]
        constvars = [Var(c.aval) for c in constants]
        invars = self._variables(text["inputs"])
        bound: list[Atom] = [*constvars, *invars]

        def read(operands: Sequence[Any]) -> list[Atom]:
            return [self._literal(o) if isinstance(o, dict) else bound[natural_number(o)] for o in operands]

        equations = []
        for name, operands, types, params in text["equations"]:
            atoms, outvars = read(operands), self._variables(types)
            values = {
                _RENAMED.get((name, key), key): decode(self._substitute_sizes(value), self._programs.__getitem__)
                for key, value in params.items()
            }
            if name == _SIZE and not isinstance(values.get("dim"), Dimension):
                bound.append(_size_literal(values, outvars))
                continue
            equations.append(Equation(_primitive(name, values), atoms, outvars, values))
            bound += outvars
        return ClosedJaxpr(Jaxpr(constvars, invars, read(text["outputs"]), equations), constants)

    def _variables(self, types: Sequence[Any]) -> list[Var]:
        return [Var(decode_aval(self._substitute_sizes(kind))) for kind in types]

    def _literal(self, operand: Mapping[str, Any]) -> Literal:
        kind, content = operand["literal"]
        aval = decode_aval(kind)
        if isinstance(content, dict):
            return Literal(from_host(np.asarray(self._number(content), aval.dtype), aval.weak_type))
        return Literal(_constant(aval, bytes.fromhex(content)))

    def _number(self, content: Mapping[str, Any]) -> Any:
        """Return a literal that depends on sizes: a number times, or divided by, a size."""
        ((kind, (factor, terms)),) = content.items()
        value = dimension_of(terms).substitute(self._sizes)
        if isinstance(value, Dimension):
            raise ShapeError(f"a number in it depends on the symbolic size {value}")
        number = float.fromhex(factor)
        return {"times": number * float(value), "over": number / float(value) if value else math.inf}[kind]

    def _substitute_sizes(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._substitute_sizes(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"dim"}:
            return dimension_of(value["dim"]).substitute(self._sizes)
        return {key: self._substitute_sizes(item) for key, item in value.items()}


#: Parameters of primitives that have other names in files of version 0.1.0.
_RENAMED = {("top_k", "dimension"): "axis"}

#: The name of the primitive whose result is a symbolic size. A program for certain sizes has the number in its place.
_SIZE = "dim_as_value"


def _size_literal(params: Mapping[str, Any], outvars: Sequence[Var]) -> Literal:
    """Return the number that stands for a size as a value."""
    if len(outvars) != 1 or params.keys() != {"dim"} or type(params["dim"]) is not int or outvars[0].aval.shape:
        raise CorruptFileError(f"a size as a value has one result, a number, got {dict(params)!r:.80}")
    aval = outvars[0].aval
    return Literal(from_host(np.asarray(params["dim"], aval.dtype), aval.weak_type))


def _primitive(name: Any, params: Mapping[str, Any]) -> Primitive:
    """Return a primitive that takes these parameters."""
    primitive = PRIMITIVES.get(name)
    if primitive is None:
        declare_all()
        primitive = PRIMITIVES.get(name)
    if primitive is None or primitive.effectful or primitive.expand is not None:
        raise CorruptFileError(f"this version of volta_fn has no primitive {name!r:.40} for files")
    check_parameters(primitive, params)
    return primitive


# The modules that declare primitives, which load on demand.

#: Outside of `volta_fn.primitives`.
_MODULES = ("volta_fn.random", "volta_fn.scipy.special")


@functools.cache
def declare_all() -> None:
    """Load every module that declares primitives which may occur in files."""
    folder = Path(primitives.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        names = file.relative_to(folder).with_suffix("").parts
        load(".".join(["volta_fn.primitives", *[name for name in names if name != "__init__"]]))
    for name in _MODULES:
        load(name)


# Types of a program in a file.


def struct_of(kind: Sequence[Any]) -> ShapedArray:
    """Return the type that a file describes, with symbolic sizes."""
    dtype, shape, *weak = kind
    sizes: Any = tuple([dimension_of(size["dim"]) if isinstance(size, dict) else size for size in shape])
    return ShapedArray(sizes, dtype_named(dtype), bool(weak))


def output_types(program: Mapping[str, Any], constants: Sequence[Any]) -> list[Any]:
    """Return the types of a program's results."""
    bound = [constants[i] for i in program["constants"]] + program["inputs"]
    for _, _, types, _ in program["equations"]:
        bound += types
    return [output["literal"][0] if isinstance(output, dict) else bound[output] for output in program["outputs"]]


# The file of an exported function: a safetensors file with a manifest.
#
# The constants are its tensors, so that any safetensors reader shows them, and `volta_fn.io.files` checks their names, dtypes, shapes
# and offsets, as bytes whose dtypes and shapes the manifest has. The metadata has three texts:
#
# - ``volta_fn.export``: the version of the format, a number.
# - ``manifest``: the programs and structures, in JSON (docs/export.md describes it).
# - ``blake2b``: the hash of the manifest and of the tensors' bytes, in hexadecimal digits.
#
# Nothing in a file is code, and no name in it is imported.

#: The newest version of the format. Files with operations of sizes have this, others the first.
VERSION = 2
_VERSION, _MANIFEST, _HASH = "volta_fn.export", "manifest", "blake2b"
_NAME = "the exported function"


def pack(manifest: dict[str, Any], constants: Sequence[np.ndarray]) -> bytearray:
    """Return the bytes of a file."""
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False)
    arrays = {f"c{i:06}": np.frombuffer(np.ascontiguousarray(c).tobytes(), np.uint8) for i, c in enumerate(constants)}
    data = b"".join([a.tobytes() for a in arrays.values()])
    return bytearray(serialized(arrays, {_VERSION: str(_version_of(manifest)), _MANIFEST: text, _HASH: _hash(text.encode(), data)}))


def _version_of(value: Any) -> int:
    """Return the version of the format that a manifest needs."""
    if isinstance(value, list):
        return VERSION if value and value[0] == _SIZE else max(map(_version_of, value), default=1)
    if not isinstance(value, dict):
        return 1
    if value.keys() == {"dim"}:
        return 1 if all(isinstance(factor, str) for _, monomial in value["dim"] for factor, _ in monomial) else VERSION
    return max(map(_version_of, value.values()), default=1)


def unpack(blob: bytes | bytearray | memoryview) -> tuple[dict[str, Any], list[bytes]]:
    """Return the manifest of a file, and the bytes of its constants.

    Raises `CorruptFileError` for damage, and `SerializationError` for a newer version.
    """
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise ArgumentTypeError(f"deserialize takes the bytes of a file, got {type(blob).__name__}; read it with open(path, 'rb').read()")
    content = bytes(blob)
    start = LENGTH_BYTES + header_length(content[:LENGTH_BYTES], len(content), _NAME)
    header = parse_header(content[LENGTH_BYTES:start], len(content) - start, _NAME)
    _check_version(header)
    text = header.metadata.get(_MANIFEST, "").encode()
    if header.metadata.get(_HASH) != _hash(text, content[start:]):
        raise damaged("its content does not have the hash that was saved with it")
    names = [f"c{number:06}" for number in range(len(header.tensors))]
    if set(names) != header.tensors.keys():
        raise damaged(f"its tensors must be named c000000, c000001, …, got {sorted(header.tensors)!r:.80}")
    ranges = [header.tensors[name] for name in names]
    return parse_json(text, f"{_NAME}: the manifest", naturals=False), [content[start + t.begin : start + t.end] for t in ranges]


def _check_version(header: Header) -> None:
    version = header.metadata.get(_VERSION, "")
    if not version.isdecimal() or not version.isascii() or len(version) > 9:
        raise CorruptFileError(f"{_NAME} cannot be read: it is a safetensors file, but has no version of exported functions")
    if int(version) > VERSION:
        raise SerializationError(
            f"{_NAME} has format {version}, but this version of volta_fn reads formats up to {VERSION}: install a newer volta_fn"
        )


def _hash(text: bytes, data: bytes) -> str:
    digest = hashlib.blake2b(len(text).to_bytes(8, "little"), digest_size=32)
    digest.update(text)
    digest.update(data)
    return digest.hexdigest()
