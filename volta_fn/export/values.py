"""Types, parameters and pytrees in files: as JSON, and back, checked.

A file may hold anything, and the rules of primitives assume valid parameters.
"""

from __future__ import annotations

import functools
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import OPERATIONS, Dimension, Operation, simplified
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Primitive, evaluation_of
from volta_fn.dtypes import as_dtype, float0
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, TreeError, VoltaError
from volta_fn.primitives.call import Axes, Form
from volta_fn.primitives.contraction import Precision, RaggedDotDimensionNumbers, dot_general_p
from volta_fn.primitives.convolution import ConvDimensionNumbers
from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.primitives.elementwise.arithmetic import RoundingMethod
from volta_fn.primitives.fourier import FftType
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.primitives.random import RandomAlgorithm
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.settings import current as settings
from volta_fn.source import signature
from volta_fn.tree.registry import DictKey, FlattenedIndexKey, GetAttrKey, key_of, registry_entry

# Errors of damaged files.

#: What invalid JSON may raise in code that assumes valid JSON, such as the rules of primitives.
INVALID = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError, VoltaError)


def damaged(reason: str | BaseException) -> CorruptFileError:
    """Return the error of a file with invalid content, by a reason or another error."""
    return CorruptFileError(f"the exported function is damaged: {reason if isinstance(reason, str) else first_line(reason)}")


def first_line(error: BaseException) -> str:
    """Return the beginning of an error's message.

    The name of its class comes first, unless it is one of this package.
    """
    text = error.message if isinstance(error, VoltaError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0][:200]


# Values of equations' parameters as JSON, and back.
#
# Integers, texts, booleans, None and finite floats are themselves, tuples are lists. An object has one key, which says what it is.

#: Tuples that are one value.
_RECORD_TYPES = (
    Form,
    QuantizedLayout,
    ConvDimensionNumbers,
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
    RaggedDotDimensionNumbers,
)
_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (Axes, *_RECORD_TYPES)}
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


# Sizes, which may be symbolic.

#: The most operations of sizes within each other.
_DEEPEST = 32


def dimension_of(terms: Any, depth: int = 0) -> Dimension:
    """Return the polynomial of [[coefficient, [[factor, exponent], …]], …].

    A factor is the name of a variable, or an operation of two such polynomials, [name, terms, terms].
    """
    if depth > _DEEPEST:
        raise CorruptFileError(f"a size has operations in more than {_DEEPEST} levels")
    return Dimension({tuple([(_factor(n, depth), natural_number(e)) for n, e in monomial]): Fraction(c) for c, monomial in terms})


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


def natural_number(value: Any) -> int:
    """Return a natural number; raise `CorruptFileError` for anything else."""
    if type(value) is not int or value < 0:
        raise CorruptFileError(f"{value!r:.40} is no natural number")
    return value


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
        rules = signature(rule).parameters.values()
        if all(p.kind is not p.VAR_KEYWORD for p in rules):
            return frozenset([p.name for p in rules if p.kind is p.KEYWORD_ONLY]) - {"out"}, frozenset()
    return None, frozenset()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)) and not isinstance(value, _RECORD_TYPES):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _has_type(leaf: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(leaf, Dimension):
        return int in kinds
    return isinstance(leaf, kinds) and (type(leaf) is not bool or bool in kinds)


# Structures of pytrees as JSON, without the classes of their nodes.
#
# A leaf is "*", None is null. Lists, tuples and dictionaries are themselves, every other node is named with its children's names. Where a
# process has not registered such a class for files (`register_pytree_node_serialization`, `register_namedtuple_serialization`), a
# dictionary of the children by name stands for it, in results as in arguments.

LEAF = "*"
C = TypeVar("C", bound=type)


class NodeForm(NamedTuple):
    """The representation of a class's nodes in files."""

    name: str
    serialize: Callable[[Any], bytes | bytearray]
    deserialize: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any]


_BY_CLASS: dict[type, NodeForm] = {}
_BY_NAME: dict[str, NodeForm] = {}


def register_pytree_node_serialization(
    nodetype: C,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes | bytearray],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> C:
    """Register how files of exported functions store the nodes of a pytree class.

    Args:
        nodetype: the class.
        serialized_name: its name in files, unique in a process.
        serialize_auxdata, deserialize_auxdata: the node's auxiliary data to bytes, and back.
        from_children: ``from_children(auxdata, children)`` returns a node; without it the function that the class was registered with as
            a pytree does.

    Raises `ArgumentError` if the class or the name is registered already, or the class is no pytree and `from_children` is missing.
    Without this, results have dictionaries in place of such nodes.

    >>> class Pair(list): ...
    >>> vf.tree_util.register_pytree_node(Pair, lambda p: (tuple(p), None), lambda _, children: Pair(children))
    >>> _ = register_pytree_node_serialization(
    ...     Pair, serialized_name="Pair", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None)
    >>> exported = vf.export.export(vf.jit(lambda x: Pair([x, x])))(1.0)
    >>> type(vf.export.deserialize(exported.serialize()).call(1.0)).__name__
    'Pair'
    """
    if nodetype in _BY_CLASS or serialized_name in _BY_NAME:
        raise ArgumentError(
            f"duplicate serialization registration: {nodetype.__name__} or the name {serialized_name!r} is registered for files already"
        )
    if from_children is None:
        entry = registry_entry(nodetype)
        if entry is None:
            raise ArgumentError(
                f"{nodetype.__name__} is no pytree: give from_children, or call register_pytree_node or register_pytree_node_class first"
            )
        from_children = entry.unflatten_func
    form = NodeForm(serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    _BY_CLASS[nodetype] = _BY_NAME[serialized_name] = form
    return nodetype


def register_namedtuple_serialization(nodetype: C, *, serialized_name: str) -> C:
    """Register a namedtuple for files of exported functions, as for other nodes.

    Raises `ArgumentError` for other classes.

    >>> from typing import NamedTuple
    >>> class Moments(NamedTuple):
    ...     mean: float
    >>> register_namedtuple_serialization(Moments, serialized_name="Moments") is Moments
    True
    """
    if not (isinstance(nodetype, type) and issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise ArgumentError(f"{nodetype!r} is no namedtuple; use register_pytree_node_serialization for other classes")
    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: None,
        from_children=lambda _, children: nodetype(*children),
    )


register_pytree_node_serialization(
    PRNGKeyArray,
    serialized_name="PRNGKeyArray",
    serialize_auxdata=lambda implementation: implementation.encode(),
    deserialize_auxdata=lambda data: data.decode(),
)
register_pytree_node_serialization(
    OrderedDict,
    serialized_name="OrderedDict",
    serialize_auxdata=lambda keys: json.dumps(list(keys)).encode(),
    deserialize_auxdata=json.loads,
    from_children=lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
)


def describe(treedef: tree.TreeDef) -> Any:
    """Return a structure as JSON."""
    level = treedef.one_level()
    if level is None:
        return LEAF
    kind: Any = treedef.type
    children = [describe(child) for child in treedef.children()]
    if kind is type(None):
        return None
    if kind is list or kind is tuple:
        return {kind.__name__: children}
    keys = [_name(key_of(accessor[0])) for accessor in level.accessors()]
    if kind is dict:
        return {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    form = _BY_CLASS.get(kind)
    auxiliary = level.walk(range(len(children)), lambda _, data, children: data)
    static = "" if form is None else form.serialize(auxiliary).hex()
    name = kind.__qualname__ if form is None else form.name
    return {"node": [name, static, [[str(key), child] for key, child in zip(keys, children, strict=True)]]}


def _name(key: Any) -> Any:
    return key.key if isinstance(key, DictKey | FlattenedIndexKey) else key.name if isinstance(key, GetAttrKey) else key.idx


def check_nodes(structure: Any) -> None:
    """Raise `ArgumentTypeError` if a file cannot hold a dictionary's keys.

    In JAX's mode, raise `ArgumentError` for nodes of a class that is not registered for files.
    """
    if settings.permissive and isinstance(structure, dict) and "node" in structure and (name := structure["node"][0]) not in _BY_NAME:
        raise ArgumentError(
            f"Cannot serialize arguments or results of the unregistered type {name}. Use export.register_pytree_node_serialization or "
            "export.register_namedtuple_serialization"
        )
    for key, child in [] if structure == LEAF else _children(structure):
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ArgumentTypeError(
                f"a dictionary in an exported function's arguments or results has the key {key!r:.40}. Serialization is supported only for "
                "dictionaries with string keys, and integers"
            )
        check_nodes(child)


def leaf_count(structure: Any) -> int:
    """Return the number of leaves of a structure."""
    return 1 if structure == LEAF else sum([leaf_count(child) for _, child in _children(structure)])


def _children(structure: Any) -> list[tuple[Any, Any]]:
    if structure is None:
        return []
    if structure == LEAF or not isinstance(structure, dict):
        raise CorruptFileError(f"{structure!r:.40} is no structure of a pytree")
    ((kind, content),) = structure.items()
    if kind in ("list", "tuple"):
        return list(enumerate(content))
    if kind not in ("dict", "node"):
        raise CorruptFileError(f"{kind!r:.40} is no node of a pytree")
    return [(key, child) for key, child in (content if kind == "dict" else content[2])]


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree of a structure with these leaves."""
    if structure == LEAF:
        return next(leaves)
    children = [(key, unflatten(child, leaves)) for key, child in _children(structure)]
    if structure is None:
        return None
    ((kind, content),) = structure.items()
    values = [child for _, child in children]
    if kind in ("list", "tuple"):
        return values if kind == "list" else tuple(values)
    node_form = _BY_NAME.get(content[0]) if kind == "node" else None
    return dict(children) if node_form is None else node_form.from_children(node_form.deserialize(bytes.fromhex(content[1])), values)


def flatten(structure: Any, value: Any, path: str = "") -> list[Any]:
    """Return a tree's leaves; raise `TreeError` if it has another structure."""
    if structure == LEAF:
        if not tree.all_leaves([value]):
            raise TreeError(f"the exported function takes an array at {path or 'its root'}, got a {type(value).__name__}")
        return [value]
    expected = _children(structure)
    children = _named_children(value)
    if structure is None:
        fits = value is None
    elif "node" in structure and isinstance(value, dict):
        fits = children.keys() == {key for key, _ in expected}
    else:
        actual = describe(tree.structure(value, lambda node: node is not value))
        fits = _kind(structure) == _kind(actual) and [*children] == [key for key, _ in expected]
    if not fits:
        names, where = [key for key, _ in expected], path or "its root"
        raise TreeError(
            f"the exported function takes {_in_words(structure)} of {names} at {where}, got a {type(value).__name__} of {[*children]}"
        )
    return [leaf for key, child in expected for leaf in flatten(child, children[key], f"{path}[{key!r}]")]


def _kind(structure: Any) -> Any:
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    return (kind, *content[:2]) if kind == "node" else kind


def _in_words(structure: Any) -> str:
    kind = _kind(structure)
    return f"a {kind[1]}, or a dictionary," if isinstance(kind, tuple) else "None, a tree" if kind is None else f"a {kind}"


def _named_children(value: Any) -> dict[Any, Any]:
    """Return a node's children by name."""
    if tree.all_leaves([value]):
        return {}
    pairs, treedef = tree.flatten_with_path(value, is_leaf=lambda node: node is not value)
    names = [key for key, _ in _children(describe(treedef))]
    return dict(zip(names, [child for _, child in pairs], strict=True))


def treedef_of(structure: Any, leaves: Sequence[Any]) -> tree.TreeDef:
    """Return a structure in JSON as one of pytrees, whose leaves these may be.

    Constructors of nodes may look at their shapes and dtypes.
    """
    if leaf_count(structure) != len(leaves):
        raise damaged("its program does not fit its structures")
    return tree.structure(unflatten(structure, iter(leaves)))
