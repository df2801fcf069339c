"""From a program to a file's JSON, with the types and structures of its arguments."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, host_buffer
from volta_fn.core.aval import ShapedArray
from volta_fn.core.dimension import Dimension, Size, divided
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, called_program
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, ExportError, TreeError
from volta_fn.export.reading import UnstorableError, dimension_of, dtype_named, encode, encode_aval
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.tree.registry import DictKey, FlattenedIndexKey, GetAttrKey, key_of, registry_entry

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

    >>> import volta_fn as vf
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
    """Return the JSON of a structure."""
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


def check_keys(form: Any) -> None:
    """Raise `ArgumentTypeError` if a file cannot hold a dictionary's keys."""
    for key, child in [] if form == LEAF else _children(form):
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise ArgumentTypeError(
                f"a dictionary in an exported function's arguments or results has the key {key!r:.40}. Serialization is supported only for "
                "dictionaries with string keys, and integers"
            )
        check_keys(child)


def leaf_count(form: Any) -> int:
    """Return the number of leaves of a structure."""
    return 1 if form == LEAF else sum([leaf_count(child) for _, child in _children(form)])


def _children(form: Any) -> list[tuple[Any, Any]]:
    if form is None:
        return []
    if form == LEAF or not isinstance(form, dict):
        raise CorruptFileError(f"{form!r:.40} is no structure of a pytree")
    ((kind, content),) = form.items()
    if kind in ("list", "tuple"):
        return list(enumerate(content))
    if kind not in ("dict", "node"):
        raise CorruptFileError(f"{kind!r:.40} is no node of a pytree")
    return [(key, child) for key, child in (content if kind == "dict" else content[2])]


def unflatten(form: Any, leaves: Iterator[Any]) -> Any:
    """Return the tree of a structure with these leaves."""
    if form == LEAF:
        return next(leaves)
    children = [(key, unflatten(child, leaves)) for key, child in _children(form)]
    if form is None:
        return None
    ((kind, content),) = form.items()
    values = [child for _, child in children]
    if kind in ("list", "tuple"):
        return values if kind == "list" else tuple(values)
    node_form = _BY_NAME.get(content[0]) if kind == "node" else None
    return dict(children) if node_form is None else node_form.from_children(node_form.deserialize(bytes.fromhex(content[1])), values)


def flatten(form: Any, value: Any, path: str = "") -> list[Any]:
    """Return a tree's leaves; raise `TreeError` if it has another structure."""
    if form == LEAF:
        if not tree.all_leaves([value]):
            raise TreeError(f"the exported function takes an array at {path or 'its root'}, got a {type(value).__name__}")
        return [value]
    expected = _children(form)
    children = _named_children(value)
    if form is None:
        fits = value is None
    elif "node" in form and isinstance(value, dict):
        fits = children.keys() == {key for key, _ in expected}
    else:
        actual = describe(tree.structure(value, lambda node: node is not value))
        fits = _kind(form) == _kind(actual) and [*children] == [key for key, _ in expected]
    if not fits:
        names, where = [key for key, _ in expected], path or "its root"
        raise TreeError(
            f"the exported function takes {_in_words(form)} of {names} at {where}, got a {type(value).__name__} of {[*children]}"
        )
    return [leaf for key, child in expected for leaf in flatten(child, children[key], f"{path}[{key!r}]")]


def _kind(form: Any) -> Any:
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    return (kind, *content[:2]) if kind == "node" else kind


def _in_words(form: Any) -> str:
    kind = _kind(form)
    return f"a {kind[1]}, or a dictionary," if isinstance(kind, tuple) else "None, a tree" if kind is None else f"a {kind}"


def _named_children(value: Any) -> dict[Any, Any]:
    """Return a node's children by name."""
    if tree.all_leaves([value]):
        return {}
    pairs, treedef = tree.flatten_with_path(value, is_leaf=lambda node: node is not value)
    names = [key for key, _ in _children(describe(treedef))]
    return dict(zip(names, [child for _, child in pairs], strict=True))


# Types of an exported function, and the conversion of arguments to them.


def structure_of(form: Any, leaves: Sequence[Any]) -> tree.TreeDef:
    """Return the structure that a file describes, given leaves.

    Constructors of nodes may look at their shapes and dtypes.
    """
    if leaf_count(form) != len(leaves):
        raise CorruptFileError("the exported function is damaged: its program does not fit its structures")
    return tree.structure(unflatten(form, iter(leaves)))


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


def converted(value: Array, target: ShapedArray, name: str) -> Array:
    """Return an argument in its wanted type; Python numbers take any dtype of a kind."""
    if value.dtype == target.dtype and value.aval.weak_type == target.weak_type:
        return value
    if value.dtype != target.dtype and not value.aval.weak_type:
        raise ArgumentTypeError(
            f"{name} must be {ShapedArray((), target.dtype)} of shape {target.shape}, got {value.aval}; convert it by astype"
        )
    return convert_element_type(value, target.dtype, weak_type=target.weak_type)


def solution(dimension: Dimension, size: Size, sizes: Mapping[str, Size]) -> dict[str, Size]:
    """Return the variable that a size, maybe symbolic, determines."""
    unknown = [name for name in dimension.variables if name not in sizes]
    if len(unknown) != 1:
        return {}
    (name,) = unknown
    at = [dimension.substitute({**sizes, name: n}) for n in (0, 1, 2)]
    slope = at[1] - at[0]
    if at[2] - at[1] != slope or slope == 0:
        return {}
    value, remainder = divided(size - at[0], slope)
    return {name: value} if remainder == 0 else {}


# From a program to the JSON of a manifest.
#
# Derivative rules are Python functions and are not written: of a call with rules, only the called program is.

#: Calls that targets have routines for, which recognise them by name.
_KEPT = frozenset({"attention", "attention_tangent", "attention_gradient", "jit"})


class ProgramWriter:
    """Writes programs, each once, those that a program calls before it."""

    def __init__(self) -> None:
        self.programs: list[dict[str, Any]] = []
        self.constants: list[np.ndarray] = []
        self.types: list[Any] = []
        self._written: dict[ClosedJaxpr, int] = {}
        self._stored: dict[int, int] = {}

    def write(self, closed: ClosedJaxpr) -> int:
        """Write a program, unless it has been, and return its number."""
        if closed not in self._written:
            program = self._program(closed)
            self._written[closed] = len(self.programs)
            self.programs.append(program)
        return self._written[closed]

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
        if id(value) not in self._stored:
            if not isinstance(value, ConcreteArray):
                raise ExportError("an exported function cannot depend on traced arrays; export it outside of transforms")
            self._stored[id(value)] = len(self.constants)
            self.constants.append(np.asarray(host_buffer(value)))
            self.types.append(encode_aval(value.aval))
        return self._stored[id(value)]


def without_rules(eqn: Equation) -> Equation:
    """Replace a call that has rules in Python by a plain call of its program."""
    if eqn.primitive.name in _KEPT:
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
