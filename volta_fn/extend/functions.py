"""Functions and trees by the names of `jax.api_util` and `jax.extend.linear_util`.

`wrap_init` wraps a function, transformations wrap it further, and flattening makes it a function of leaves. In the trees here, an array of
random keys is a leaf.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, aval_of
from volta_fn.core.jaxpr import DebugInfo as DebugInfo
from volta_fn.core.staging import function_name
from volta_fn.errors import ArgumentError, TreeError
from volta_fn.lazy_imports import deferred
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.source import parameter_names
from volta_fn.tree.registry import NAMESPACE, REGISTERED, optree, register_dataclass, register_node

# `wrap_init(f)` wraps a function, transformations wrap it further, and `call_wrapped` calls it.


class StoreException(Exception):
    """A value was asked for before the function was called."""


class Store:
    """A value that a function leaves when it is called: `store`, `val`."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def store(self, value: Any) -> None:
        """Keep the value of the latest call."""
        self._found = [value]

    @property
    def val(self) -> Any:
        """The value; raises `StoreException` if there is none yet."""
        if not self._found:
            raise StoreException("the function has not been called yet")
        return self._found[0]

    def __call__(self) -> Any:
        return self.val


class WrappedFun:
    """A function to be called by `call_wrapped`, with keyword arguments `params`."""

    def __init__(self, f: Callable[..., Any], params: dict[str, Any] | None = None, debug_info: Any = None) -> None:
        self.f = f
        self.params = params or {}
        self.debug_info = debug_info

    @property
    def __name__(self) -> str:
        return getattr(self.f, "__name__", "<unnamed function>")

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.f(*args, **self.params, **kwargs)


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """Wrap a function."""
    return WrappedFun(f, params, debug_info)


def _curried(make: Callable[..., Any]) -> Callable[..., Any]:
    """Let `make(gen, fun, …)` also serve as a decorator of `gen`."""

    @functools.wraps(make)
    def call(gen: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return make(gen, *args, **kwargs) if args else functools.partial(make, gen)

    return call


@_curried
def transformation2(gen: Callable[..., Any], fun: WrappedFun, *static: Any) -> WrappedFun:
    """Transform a function by `gen(f, *static, *args, **kwargs)`, which calls `f`."""
    return WrappedFun(functools.partial(gen, fun.call_wrapped, *static), debug_info=fun.debug_info)


@_curried
def transformation_with_aux2(gen: Callable[..., Any], fun: WrappedFun, *static: Any, **options: Any) -> tuple[WrappedFun, Store]:
    """Transform by `gen(f, store, *static, *args, **kwargs)`; also return the store."""
    store = Store()
    return WrappedFun(functools.partial(gen, fun.call_wrapped, store, *static), debug_info=fun.debug_info), store


def _run(gen: Callable[..., Any], f: Callable[..., Any], static: Any, args: Any, kwargs: Any) -> Any:
    """Run a transformation that is a generator: it yields arguments, then its result."""
    steps = gen(*static, *args, **kwargs)
    inner_args, inner_kwargs = next(steps)
    return steps.send(f(*inner_args, **inner_kwargs))


@_curried
def transformation(gen: Callable[..., Any], fun: WrappedFun, *static: Any) -> WrappedFun:
    """Transform by a generator: it yields arguments, is sent results, yields its own."""
    return WrappedFun(lambda *args, **kwargs: _run(gen, fun.call_wrapped, static, args, kwargs), debug_info=fun.debug_info)


@_curried
def transformation_with_aux(gen: Callable[..., Any], fun: WrappedFun, *static: Any, **options: Any) -> tuple[WrappedFun, Store]:
    """Transform by a generator that yields its result and what to store last."""
    store = Store()

    def call(*args: Any, **kwargs: Any) -> Any:
        result, aux = _run(gen, fun.call_wrapped, static, args, kwargs)
        store.store(aux)
        return result

    return WrappedFun(call, debug_info=fun.debug_info), store


def merge_linear_aux(aux1: Store, aux2: Store) -> tuple[bool, Any]:
    """Return which of two stores has a value, and that value."""
    try:
        return True, aux1.val
    except StoreException:
        return False, aux2.val


def cache(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Keep the results of a function of wrapped functions."""
    return functools.lru_cache(maxsize=256)(call)


# Flattening of wrapped functions, by the names of `jax.api_util`.

#: The type of an argument, by JAX's name.
shaped_abstractify = aval_of


def debug_info(traced_for: str, fun: Callable[..., Any], args: Any = (), kwargs: Any = None, **options: Any) -> DebugInfo:
    """Return the description of a function for messages."""
    return DebugInfo(traced_for, function_name(fun), tuple(parameter_names(fun)))


@transformation_with_aux2
def flatten_fun(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """Make a function of `(args, kwargs)` one of leaves; store the result's tree."""
    args, kwargs = tree.unflatten(in_tree, leaves)
    return _flattened(f(*args, **kwargs), store)


@transformation_with_aux2
def flatten_fun_nokwargs(f: Callable[..., Any], store: Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """Make a function of `args` one of leaves; store the result's tree."""
    return _flattened(f(*tree.unflatten(in_tree, leaves)), store)


def _flattened(result: Any, store: Store) -> list[Any]:
    leaves, structure = tree.flatten(result)
    store.store(structure)
    return leaves


def argnums_partial(f: WrappedFun, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True) -> Any:
    """Return the function of the arguments at some positions, and these arguments."""
    call, dynamic = argnums_partial2(f.call_wrapped, dyn_argnums, args, {})
    return WrappedFun(call, debug_info=f.debug_info), dynamic


def argnums_partial2(f: Callable[..., Any], dyn_argnums: int | Sequence[int], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return a callable of the arguments at some positions, and these arguments."""
    positions = _ensure_inbounds(False, len(args), _ensure_index_tuple(dyn_argnums))

    def call(*dynamic: Any, **more: Any) -> Any:
        by_position = dict(zip(positions, dynamic, strict=True))
        return f(*[by_position.get(i, arg) for i, arg in enumerate(args)], **kwargs, **more)

    return call, tuple(args[n] for n in positions)


def _ensure_index(x: Any) -> int | tuple[int, ...]:
    """Return an index as an integer, or several as a tuple."""
    try:
        return operator.index(x)
    except TypeError:
        return tuple(map(operator.index, x))


def _ensure_index_tuple(x: Any) -> tuple[int, ...]:
    """Return an index, or several, as a tuple of integers."""
    index = _ensure_index(x)
    return (index,) if isinstance(index, int) else index


def _ensure_inbounds(allow_invalid: bool, num_args: int, argnums: Sequence[int]) -> tuple[int, ...]:
    """Return positions of arguments counted from the first.

    With `allow_invalid`, those beyond the last are left out. Raises `ArgumentError` for others that do not exist.
    """
    positions = [n for n in argnums if not (allow_invalid and n >= num_args)]
    if outside := [n for n in positions if not -num_args <= n < num_args]:
        raise ArgumentError(f"positional argument indices must be at least -{num_args} and less than {num_args}, got {outside[0]}")
    return tuple([n % num_args for n in positions])


def flatten_axes(name: str, treedef: Any, axis_tree: Any, **options: Any) -> list[Any]:
    """Return the entry of a prefix tree for each leaf of a structure; None is a leaf."""
    dummies = tree.unflatten(treedef, [0] * treedef.num_leaves)
    return tree.broadcast_prefix(axis_tree, dummies, is_leaf=lambda x: x is None)


def prefix_errors(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Callable[[str], ValueError]]:
    """Return what keeps a tree from being a prefix of another.

    It is the first difference, as a function that makes an error from the name of the argument; nothing for a prefix.
    """
    try:
        tree.broadcast_prefix(prefix_tree, full_tree, is_leaf)
    except TreeError as error:
        message = error.args[0]
        return [lambda name: TreeError(f"pytree structure error in {name}: {message}")]
    return []


def donation_vector(donate_argnums: Sequence[int], donate_argnames: Sequence[str], in_tree: Any, kws: bool = True) -> tuple[bool, ...]:
    """Return for each leaf of `(args, kwargs)` whether its argument is donated.

    Without `kws` the leaves are those of `args`.
    """
    arguments = tree.unflatten(in_tree, list(range(in_tree.num_leaves)))
    args, kwargs = arguments if kws else (arguments, {})
    by_position = [i in donate_argnums for i, arg in enumerate(args) for _ in tree.leaves(arg)]
    return (*by_position, *[name in donate_argnames for name in sorted(kwargs) for _ in tree.leaves(kwargs[name])])


def rebase_donate_argnums(donate_argnums: Sequence[int], static_argnums: Sequence[int]) -> tuple[int, ...]:
    """Return donated positions as counted without the static arguments."""
    return tuple(sorted(n - sum(s < n for s in static_argnums) for n in donate_argnums))


def safe_map(f: Callable[..., Any], *sequences: Sequence[Any]) -> list[Any]:
    """Apply a function to the elements of sequences of one length."""
    return [f(*row) for row in zip(*sequences, strict=True)]


def safe_zip(*sequences: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Pair the elements of sequences of one length."""
    return list(zip(*sequences, strict=True))


def infer_argnums_and_argnames(
    sig: inspect.Signature, argnums: int | Sequence[int] | None, argnames: str | Sequence[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return positions and names of arguments, of which either may be left out."""
    names = list(sig.parameters)
    if argnums is None and argnames is None:
        return (), ()
    if argnums is None:
        keywords = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
        return tuple(names.index(n) for n in keywords if n in names), keywords
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if argnames is None:
        return numbers, tuple(names[n] for n in numbers if -len(names) <= n < len(names))
    return numbers, (argnames,) if isinstance(argnames, str) else tuple(argnames)


# Functions on pytrees in which an array of random keys is a leaf, as in JAX.
#
# In `volta_fn.tree` it is a node, whose leaf is its data: so keys pass through transforms like any tree of arrays. Programs written for
# JAX map functions over trees of keys, and `jax.tree` and `jax.tree_util` are these functions.

_ADVICE = deferred("volta_fn.advice")
#: Asks whether a node is an array of keys (a method in C, as every node is asked).
_is_key: Callable[[Any], bool] = PRNGKeyArray.__instancecheck__


class _ArrayClass(ABCMeta):
    """Gives the class of arrays and keys the methods and properties of arrays."""

    def __getattr__(cls, name: str) -> Any:
        return getattr(ConcreteArray, name)

    def __dir__(cls) -> list[str]:
        return sorted({*type.__dir__(cls), *(name for name in dir(ConcreteArray) if name not in _ADVICE.ARRAYS)})


class AnyArray(metaclass=_ArrayClass):
    """The class of arrays and arrays of keys, for `isinstance` and annotations.

    Libraries look methods of arrays up on it.

    >>> isinstance(vf.random.key(0), AnyArray), isinstance(vf.numpy.ones(2), AnyArray)
    (True, True)
    >>> AnyArray.sum(vf.numpy.ones(2))
    Array(2., dtype=float32)
    """


AnyArray.register(Array)
AnyArray.register(PRNGKeyArray)


def _with_keys(function: Callable[..., Any], position: int) -> Callable[..., Any]:
    """Make keys leaves for a function of trees with `is_leaf`, by position or keyword."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaf_predicate = kwargs.pop("is_leaf", None)
        if len(args) > position >= 0:
            args, leaf_predicate = (*args[:position], *args[position + 1 :]), args[position]
        is_leaf = _is_key if leaf_predicate is None else (lambda node: _is_key(node) or leaf_predicate(node))
        return function(*args, is_leaf=is_leaf, **kwargs)

    return call


flatten = tree_flatten = _with_keys(tree.flatten, 1)
leaves = tree_leaves = _with_keys(tree.leaves, 1)
structure = tree_structure = _with_keys(tree.structure, 1)
map = tree_map = _with_keys(tree.map, -1)
reduce = tree_reduce = _with_keys(tree.reduce, 3)
reduce_associative = tree_reduce_associative = _with_keys(tree.reduce_associative, -1)
all = tree_all = _with_keys(tree.all, -1)
all_leaves = _with_keys(tree.all_leaves, 1)
unflatten = tree_unflatten = tree.unflatten
transpose = tree_transpose = tree.transpose


#: Functions whose parameters are called `tree`, as in JAX, name these.
_flatten_with_path, _flatten_up_to = tree.flatten_with_path, tree.flatten_up_to


def flatten_with_path(tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False) -> tuple[list[Any], Any]:
    """Return the leaves of a tree with their paths, and its structure.

    With `is_leaf_takes_path` it is `is_leaf(path, node)`.

    >>> deep = lambda path, node: len(path) == 1
    >>> flatten_with_path({"a": [1, 2]}, deep, is_leaf_takes_path=True)[0]
    [((DictKey(key='a'),), [1, 2])]
    """
    if is_leaf is None or not is_leaf_takes_path:
        return _with_keys(_flatten_with_path, 1)(tree, is_leaf)
    leaf_ids = set[int]()
    pairs = list(_walk((), tree, is_leaf, leaf_ids))
    return pairs, structure(tree, is_leaf=lambda node: id(node) in leaf_ids)


def _walk(path: tuple[Any, ...], node: Any, is_leaf: Callable[..., bool], leaf_ids: set[int]) -> Iterator[tuple[Any, Any]]:
    """Yield the paths and leaves below a node; add the ids of the leaves."""
    if is_leaf(path, node) or structure(node) == _LEAF:
        leaf_ids.add(id(node))
        yield path, node
        return
    for (key, *_), child in leaves_with_path(node, is_leaf=lambda inner: inner is not node):
        yield from _walk((*path, key), child, is_leaf, leaf_ids)


def leaves_with_path(tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False) -> list[tuple[Any, Any]]:
    """Return the leaves of a tree with their paths, as `flatten_with_path` does."""
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> Any:
    """Map like `map`, with the path as `f`'s first argument."""
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [_flatten_up_to(treedef, other, "tree.map_with_path: a tree") for other in rest]
    return treedef.unflatten([f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *columns, strict=True)])


tree_flatten_with_path, tree_leaves_with_path, tree_map_with_path = flatten_with_path, leaves_with_path, map_with_path


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return a tree like `full_tree`, with a prefix's leaf for each leaf below it.

    >>> broadcast((0, 1), ({"a": 5}, [7, 8]))
    ({'a': 0}, [1, 1])
    """
    items, treedef = flatten(prefix_tree, is_leaf=is_leaf)
    below = tree.flatten_up_to(treedef, full_tree, "tree.broadcast: the tree")
    return treedef.unflatten(
        [structure(subtree).unflatten([item] * structure(subtree).num_leaves) for item, subtree in zip(items, below, strict=True)]
    )


tree_broadcast = broadcast


class Node(NamedTuple):
    """How containers are taken apart and made.

    `to_iter(node)` returns the children and what else distinguishes the node, `from_iter` the node of these.
    """

    to_iter: Callable[[Any], tuple[list[Any], Any]]
    from_iter: Callable[[Any, Sequence[Any]], Any]


class Registry(Mapping[type, Node]):
    """The classes of containers, and how each is taken apart.

    What distinguishes a node is its structure.

    >>> children, data = registry[dict].to_iter({"b": 1, "a": [1, 2]})
    >>> children, registry[dict].from_iter(data, [3, 4])
    ([[1, 2], 1], {'b': 4, 'a': 3})
    """

    _NODE = Node(lambda node: flatten(node, is_leaf=lambda inner: inner is not node), lambda data, children: data.unflatten(children))

    def __getitem__(self, typ: type) -> Node:
        if typ not in REGISTERED:
            raise KeyError(typ)
        return self._NODE

    def __iter__(self) -> Iterator[type]:
        return iter(REGISTERED)

    def __len__(self) -> int:
        return len(REGISTERED)


registry = Registry()


def is_tree_node(typ: type) -> bool:
    """Return True for the classes of containers.

    >>> is_tree_node(dict), is_tree_node(int)
    (True, False)
    """
    return typ in REGISTERED


def flatten_one_level(tree: Any) -> tuple[list[Any], Any]:
    """Return a container's children and what else distinguishes it, as in JAX.

    That is: the keys of a dictionary, the class of a namedtuple, or the auxiliary data of a registered class.
    Raises `TreeError` for a leaf.

    >>> flatten_one_level({"b": 1, "a": [1, 2]})
    ([[1, 2], 1], ('a', 'b'))
    """
    children, treedef = flatten(tree, is_leaf=lambda inner: inner is not tree)
    if _is_key(tree) or treedef == _LEAF:
        raise TreeError(f"flatten_one_level: {tree!r:.80} of type {type(tree).__name__} is a leaf")
    data: Any = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)[1]
    if isinstance(tree, collections.defaultdict):
        return children, (data[0], tuple(data[1]))
    return children, tuple(data) if type(tree) in (dict, collections.OrderedDict) else data


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return children with keys, and what else `flatten_one_level` returns."""
    _, data = flatten_one_level(tree)
    pairs = leaves_with_path(tree, is_leaf=lambda inner: inner is not tree)
    return [(path[0], child) for path, child in pairs], data


class PyTreeRegistry:
    """The classes of containers, with the methods of JAX's registry.

    >>> default_registry.is_node(dict), default_registry.flatten_one_level(3.0)
    (True, None)
    """

    flatten = staticmethod(flatten)
    flatten_with_path = staticmethod(flatten_with_path)
    register_node = staticmethod(register_node)

    def is_node(self, type: type) -> bool:  # JAX's name
        """Return True for the classes of containers."""
        return is_tree_node(type)

    def flatten_one_level(self, tree: Any) -> tuple[list[Any], Any] | None:
        """Return what `flatten_one_level` does, or None for a leaf."""
        return None if self._is_leaf(tree) else flatten_one_level(tree)

    def flatten_one_level_with_keys(self, tree: Any) -> tuple[list[tuple[Any, Any]], Any] | None:
        """Return what `flatten_one_level_with_keys` does, or None for a leaf."""
        return None if self._is_leaf(tree) else flatten_one_level_with_keys(tree)

    def register_dataclass_node(self, type: type, data_fields: Sequence[str], meta_fields: Sequence[str], /) -> None:  # JAX's names
        """Make a dataclass a container; its `data_fields` are children."""
        register_dataclass(type, data_fields, meta_fields)

    def _is_leaf(self, value: Any) -> bool:
        return _is_key(value) or structure(value, is_leaf=lambda inner: inner is not value) == _LEAF


default_registry = PyTreeRegistry()

_LEAF = tree.structure(0)
