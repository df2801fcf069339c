"""From the bytes of a file to a program, checked.

A file is a safetensors file with a manifest in JSON. Values, parameters and programs are decoded and checked before anything runs, as a
file may hold anything.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from volta_fn import primitives
from volta_fn.core.arrays.array import ConcreteArray, from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import OPERATIONS, Dimension, Operation, Size, simplified
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var, check_jaxpr
from volta_fn.core.primitive import PRIMITIVES, Primitive, evaluation_of
from volta_fn.dtypes import as_dtype, float0
from volta_fn.errors import ArgumentTypeError, CorruptFileError, SerializationError, ShapeError, VoltaError
from volta_fn.io.files import LENGTH_BYTES, Header, header_length, parse_header, parse_json, serialized
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import Axes, Form
from volta_fn.primitives.contraction import Precision, dot_general_p
from volta_fn.primitives.convolution import ConvDimensionNumbers
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.primitives.elementwise.arithmetic import RoundingMethod
from volta_fn.primitives.fourier import FftType
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.primitives.ragged import RaggedDotDimensionNumbers
from volta_fn.primitives.random import RandomAlgorithm

# The parameters that a primitive in a file may have: names, and kinds of values.
#
# The rules of primitives assume valid parameters, since the functions that build programs check them.

_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "compute_q compute_uv compute_vectors conjugate_a full_matrices is_stable left_side lower moved reverse sort_eigenvalues"),
    ((bool,), "rounds transposed"),
    ((bool,), "transpose_a unique_indices unit_diagonal weak_type prevent_cse"),
    ((int,), "axes axis base_dilation batch_group_count bit_width body_nconsts broadcast_dimensions cond_nconsts dimension dimensions"),
    ((int,), "feature_group_count k length lhs_dilation limit_indices new_sizes num_captured num_carry num_consts num_keys padding"),
    ((int,), "padding_config permutation rhs_dilation shape slice_sizes start_indices window_dilation window_dimensions window_strides y"),
    ((int, bool), "donated unroll"),
    ((int, NoneType), "strides"),
    ((int, str), "word"),
    ((str,), "algorithm name precision select"),
    ((str, FftType), "kind"),
    ((ClosedJaxpr,), "body_jaxpr branches call_jaxpr cond_jaxpr matvec solve transpose_solve vecmat"),
    ((np.dtype,), "dtype index_dtype new_dtype"),
    ((np.dtype, NoneType), "preferred_element_type"),
    ((int, ConvDimensionNumbers, GatherDimensionNumbers, ScatterDimensionNumbers, RaggedDotDimensionNumbers), "dimension_numbers"),
    ((Form,), "form"),
    ((QuantizedLayout,), "layout"),
    ((GatherScatterMode,), "mode"),
    ((bool, int, float, complex, np.generic, NoneType), "fill_value"),
)
#: The types of parameters, and of the elements of tuples, by the parameters' names.
KINDS: dict[str, tuple[type, ...]] = {name: kinds for kinds, names in _KINDS for name in names.split()}
#: Parameters with a value per axis of windows, and the primitives of windows; `conv_general_dilated` has others.
_PER_AXIS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation", "lhs_dilation", "rhs_dilation")
_WINDOWS = frozenset(_PER_AXIS[:5])
#: The parameters of primitives whose rules take any keywords.
_NAMES: dict[str, frozenset[str]] = {
    "conv_general_dilated": frozenset({"window_strides", "padding", "lhs_dilation", "rhs_dilation", "dimension_numbers", "algorithm"})
    | {"feature_group_count", "batch_group_count", "preferred_element_type", "precision"},
    "triangular_solve": frozenset({"left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal"}),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _WINDOWS),
    **dict.fromkeys(("select_and_gather_add", "select_and_scatter_add"), _WINDOWS | {"select"}),
}
#: The largest stride, dilation, padding or window size.
_MOST = (1 << 31) - 1
#: Tuples that are one value.
_PARAMETER_RECORDS = (
    Form,
    QuantizedLayout,
    ConvDimensionNumbers,
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
    RaggedDotDimensionNumbers,
)


def check_parameters(primitive: Primitive, params: Mapping[str, Any]) -> None:
    """Raise `CorruptFileError` unless a primitive takes these parameters."""
    names, optional = _names(primitive)
    if names is not None and params.keys() - optional != names - optional:
        raise CorruptFileError(f"the primitive {primitive} has the parameters {sorted(names)}, got {sorted(params)!r:.200}")
    for name, value in params.items():
        kinds = KINDS.get(name)
        wrong = [leaf for leaf in _leaves(value) if kinds is not None and not _has_type(leaf, kinds)]  # no file has a `Dimension`
        if wrong:
            raise CorruptFileError(f"the parameter {name} of the primitive {primitive} cannot be {wrong[0]!r:.80}")
    if primitive.name in _NAMES and not _is_well_formed(params):
        raise CorruptFileError(f"the parameters of the primitive {primitive} do not fit each other: {dict(params)!r:.300}")


def _is_well_formed(params: Mapping[str, Any]) -> bool:
    """Return whether parameters fit each other.

    Flags must be single values; windows and convolutions have positive numbers, one per axis.
    """
    if "left_side" in params:
        return all(type(value) is bool for value in params.values())
    columns = [params[name] for name in _PER_AXIS if name in params]
    axes = len(params["window_strides"])
    if any(type(column) is not tuple or len(column) != axes for column in columns) or params.get("select", "ge") not in ("ge", "le"):
        return False
    for name in _PER_AXIS:
        least = 0 if name == "window_dimensions" else 1
        for value in params.get(name, ()):
            pair = value if name == "padding" else (value,)
            if type(pair) is not tuple or len(pair) != (2 if name == "padding" else 1) or not all(type(n) is int for n in pair):
                return False
            if not all((-_MOST if name == "padding" else least) <= n <= _MOST for n in pair):
                return False
    if "dimension_numbers" not in params:
        return True
    groups = (params["feature_group_count"], params["batch_group_count"])
    orders = params["dimension_numbers"]
    return all(type(n) is int and n >= 1 for n in groups) and all(
        type(order) is tuple and all(type(n) is int for n in order) and sorted(order) == [*range(axes + 2)] for order in orders
    )


@functools.cache
def _names(primitive: Primitive) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the names of a primitive's parameters, and which of them may be missing.

    They are those of its rule for types, or of its NumPy function; None where that rule itself refuses others.
    """
    if primitive.name in _NAMES:
        return _NAMES[primitive.name], _NAMES[primitive.name] & {"precision"}
    if primitive is dot_general_p:
        return frozenset({"dimension_numbers", "preferred_element_type", "precision"}), frozenset({"precision"})
    for rule in (primitive.abstract, evaluation_of(primitive)):
        if rule is None:
            continue
        if isinstance(rule, np.ufunc):
            return frozenset(), frozenset()
        rules = inspect.signature(rule).parameters.values()
        if all(p.kind is not p.VAR_KEYWORD for p in rules):
            return frozenset([p.name for p in rules if p.kind is p.KEYWORD_ONLY]) - {"out"}, frozenset()
    return None, frozenset()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, _PARAMETER_RECORDS):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _has_type(leaf: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(leaf, Dimension):
        return int in kinds
    return isinstance(leaf, kinds) and (type(leaf) is not bool or bool in kinds)


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
#: The most operations of sizes within each other.
_DEEPEST = 32
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
        raise CorruptFileError(f"{_NAME} is damaged: its content does not have the hash that was saved with it")
    names = [f"c{number:06}" for number in range(len(header.tensors))]
    if set(names) != header.tensors.keys():
        raise CorruptFileError(f"{_NAME} is damaged: its tensors must be named c000000, c000001, …, got {sorted(header.tensors)!r:.80}")
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


# Values of equations' parameters as JSON, and back.
#
# Integers, texts, booleans, None and finite floats are themselves, tuples are lists. An object has one key, which says what it is.

_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (Axes, *_PARAMETER_RECORDS)}
_ENUMS: dict[str, type[Enum]] = {kind.__name__: kind for kind in (FftType, GatherScatterMode, Precision, RandomAlgorithm, RoundingMethod)}
_PLAIN = (bool, int, str, type(None))


class UnstorableError(Exception):
    """A value that has no representation in files; callers add its location."""


def encode(value: Any, program: Callable[[ClosedJaxpr], int]) -> Any:
    """Return the JSON of a value; `program` writes a program and returns its number."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": [encode(value.real, program), encode(value.imag, program)]}
    if kind is tuple:
        return [encode(item, program) for item in value]
    if kind is list:
        return {"list": [encode(item, program) for item in value]}
    if isinstance(value, Dimension):
        return {"dim": terms_of(value)}
    if isinstance(value, ClosedJaxpr):
        return {"program": program(value)}
    if isinstance(value, ShapedArray):
        return {"aval": encode_aval(value)}
    if isinstance(value, np.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    if kind.__name__ in _RECORDS and _RECORDS[kind.__name__] is kind:
        return {"record": [kind.__name__, *[encode(item, program) for item in value]]}
    if isinstance(value, Enum) and _ENUMS.get(kind.__name__) is kind:
        return {"enum": [kind.__name__, value.name]}
    raise UnstorableError(f"a value of type {kind.__name__}")


def encode_aval(aval: ShapedArray) -> list[Any]:
    """Return the JSON of a type: dtype and shape, and true if the dtype is weak."""
    shape = [{"dim": terms_of(size)} if isinstance(size, Dimension) else size for size in aval.shape]
    return [dtype_name(aval.dtype), shape, *[True] * aval.weak_type]


def dtype_name(dtype: np.dtype) -> str:
    """Return a dtype's name in a file."""
    return "float0" if dtype == float0 else dtype.name


def decode(value: Any, program: Callable[[Any], ClosedJaxpr]) -> Any:
    """Return the value of its JSON; `program` finds a program by its number."""
    if isinstance(value, list):
        return tuple([decode(item, program) for item in value])
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODERS[kind](content, program)


def decode_aval(value: Any) -> ShapedArray:
    """Return the type that a file describes."""
    dtype, shape, *weak = value
    if not all(isinstance(size, Dimension) or (type(size) is int and size >= 0) for size in shape) or weak not in ([], [True]):
        raise CorruptFileError(f"{value!r:.80} is no type of an array")
    return ShapedArray(tuple(shape), dtype_named(dtype), bool(weak))


def dtype_named(name: Any) -> np.dtype:
    """Return the dtype of a name in a file."""
    if not isinstance(name, str):
        raise CorruptFileError(f"{name!r:.80} is no name of a dtype")
    return float0 if name == "float0" else as_dtype(name)


def _scalar(content: Any, _: Any) -> np.generic:
    name, digits = content
    scalar: np.generic = np.frombuffer(bytes.fromhex(digits), dtype_named(name))[0]
    return scalar


_DECODERS: dict[str, Callable[[Any, Any], Any]] = {
    "float": lambda content, _: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content],
    "complex": lambda content, program: complex(*decode(content, program)),
    "list": lambda content, program: list(decode(content, program)),
    "program": lambda content, program: program(content),
    "aval": lambda content, _: decode_aval(content),
    "dtype": lambda content, _: dtype_named(content),
    "scalar": _scalar,
    "record": lambda content, program: _RECORDS[content[0]](*decode(content[1:], program)),
    "enum": lambda content, _: _ENUMS[content[0]][content[1]],
}


# From the JSON of a manifest to a program, checked.
#
# A file may hold anything: any invalid content raises `CorruptFileError` before the program runs.

#: Errors that invalid JSON may raise in code that assumes valid JSON, such as the rules of primitives.
_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError, VoltaError)


def read_program(manifest: Mapping[str, Any], constants: Sequence[Any], sizes: Mapping[str, Size]) -> ClosedJaxpr:
    """Return the main program of a manifest for given sizes of its symbolic axes.

    The sizes may be symbolic themselves. Raises `CorruptFileError` if it is not a program.
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
    def __init__(self, programs: Sequence[Any], constants: Sequence[Any], sizes: Mapping[str, Size]) -> None:
        self._texts, self._constants, self._sizes = programs, constants, sizes
        self._programs: dict[int, ClosedJaxpr] = {}

    def program(self, number: Any) -> ClosedJaxpr:
        """Return the program of a number; programs call only those before them."""
        if type(number) is not int or not 0 <= number < len(self._texts):
            raise CorruptFileError(f"there is no program {number!r:.40}")
        for i in range(number + 1):
            if i not in self._programs:
                closed = self._program(self._texts[i])
                check_jaxpr(closed)
                self._programs[i] = closed
        return self._programs[number]

    def _program(self, text: Mapping[str, Any]) -> ClosedJaxpr:
        constants = [self._constants[_natural(number)] for number in text["constants"]]
        constvars = [Var(c.aval) for c in constants]
        invars = self._variables(text["inputs"])
        bound: list[Atom] = [*constvars, *invars]

        def read(operands: Sequence[Any]) -> list[Atom]:
            return [self._literal(o) if isinstance(o, dict) else bound[_natural(o)] for o in operands]

        equations = []
        for name, operands, types, params in text["equations"]:
            atoms, outvars = read(operands), self._variables(types)
            values = {key: decode(self._substitute_sizes(value), self._programs.__getitem__) for key, value in params.items()}
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


#: The name of the primitive whose result is a symbolic size. A program for certain sizes has the number in its place.
_SIZE = "dim_as_value"


def _size_literal(params: Mapping[str, Any], outvars: Sequence[Var]) -> Literal:
    """Return the number that stands for a size as a value."""
    if len(outvars) != 1 or params.keys() != {"dim"} or type(params["dim"]) is not int or outvars[0].aval.shape:
        raise CorruptFileError(f"a size as a value has one result, a number, got {dict(params)!r:.80}")
    aval = outvars[0].aval
    return Literal(from_host(np.asarray(params["dim"], aval.dtype), aval.weak_type))


def dimension_of(terms: Any, depth: int = 0) -> Dimension:
    """Return the polynomial of [[coefficient, [[factor, exponent], …]], …].

    A factor is the name of a variable, or an operation of two such polynomials, [name, terms, terms].
    """
    if depth > _DEEPEST:
        raise CorruptFileError(f"a size has operations in more than {_DEEPEST} levels")
    return Dimension({tuple([(_factor(n, depth), _natural(e)) for n, e in monomial]): Fraction(c) for c, monomial in terms})


def _factor(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value
    name, left, right = value
    if name not in OPERATIONS:
        raise CorruptFileError(f"{name!r:.40} is no operation of sizes; there are {', '.join(OPERATIONS)}")
    return Operation(name, *[simplified(dimension_of(terms, depth + 1).terms) for terms in (left, right)])


def terms_of(size: Any) -> list[Any]:
    """Return the JSON of a size: the terms of its polynomial."""
    if not isinstance(size, Dimension):
        return [[str(size), []]]
    return [[str(c), [[_factor_json(factor), exponent] for factor, exponent in monomial]] for monomial, c in size.terms.items()]


def _factor_json(factor: Any) -> Any:
    return factor if isinstance(factor, str) else [factor.name, *[terms_of(x) for x in factor.operands]]


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise CorruptFileError(f"{value!r:.40} is no natural number")
    return value


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


def _first_line(error: BaseException) -> str:
    text = error.message if isinstance(error, VoltaError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0][:200]
