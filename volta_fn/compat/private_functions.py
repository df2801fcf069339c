"""Helpers of JAX's private modules that compute with Python's values.

They are hashable functions, caches, sizes, dtypes, signatures and types of annotations. Libraries import them from there (`jax._src.util`,
`core`, `dtypes`, `api_util`, `lax.utils`, `typing`), so they have JAX's names and parameters.
"""

from __future__ import annotations

import abc
import functools
import inspect
import math
import operator
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.dimension import is_symbolic_dim, max_dim
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.trace import Tracer
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcretizationError,
    DTypeError,
    InconclusiveDimensionOperation,
    TracerBoolError,
    TracerIndexError,
    TreeError,
)
from volta_fn.extend import dtypes as key_dtypes
from volta_fn.jit.function import jit
from volta_fn.source import signature

T = TypeVar("T")

# Functions and values as keys: `jax._src.util`.


class HashableFunction:
    """A function that equals another one of the same code and `closure`."""

    def __init__(self, f: Callable[..., Any], closure: Any) -> None:
        self.f, self.closure = f, closure

    def __eq__(self, other: object) -> bool:
        return type(other) is HashableFunction and self.f.__code__ == other.f.__code__ and self.closure == other.closure

    def __hash__(self) -> int:
        return hash((self.f.__code__, self.closure))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<hashable {self.f.__name__} with closure={self.closure}>"


class HashablePartial:
    """A function with arguments, equal to those of the same code and arguments.

    >>> HashablePartial(pow, 2)(3)
    8
    """

    def __init__(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.f, self.args, self.kwargs = f, args, kwargs

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is HashablePartial
            and self.f.__code__ == other.f.__code__
            and (self.args, self.kwargs) == (other.args, other.kwargs)
        )

    def __hash__(self) -> int:
        return hash((self.f.__code__, self.args, tuple(sorted(self.kwargs.items()))))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*self.args, *args, **self.kwargs, **kwargs)


class HashableWrapper:
    """A value as a key: by its own hash, or by its identity if it has none."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.hash = hash(x) if is_hashable(x) else None

    def __hash__(self) -> int:
        return id(self.x) if self.hash is None else self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableWrapper) and bool(self.x is other.x if self.hash is None else self.x == other.x)


class Unhashable:
    """A value that is compared, and cannot be a key."""

    __slots__ = ("val",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, val: Any) -> None:
        self.val = val

    def __eq__(self, other: object) -> bool:
        return bool(self.val == getattr(other, "val", NotImplemented))


class HashableValue:
    """A value that is compared and hashed."""

    __slots__ = ("val",)

    def __init__(self, val: Hashable) -> None:
        self.val = val

    def __hash__(self) -> int:
        return hash(self.val)

    def __eq__(self, other: object) -> bool:
        return bool(self.val == getattr(other, "val", NotImplemented))


def is_hashable(arg: Any) -> bool:
    """Return True if a value can be a key.

    >>> is_hashable((1, 2)), is_hashable([1, 2])
    (True, False)
    """
    try:
        hash(arg)
    except TypeError:
        return False
    return True


class OrderedSet(Generic[T]):
    """A set whose elements are in the order in which they were added.

    >>> elements = OrderedSet()
    >>> elements.update([3, 1, 3])
    >>> list(elements), 1 in elements
    ([3, 1], True)
    """

    def __init__(self) -> None:
        self._elements: dict[T, None] = {}

    def add(self, elt: T) -> None:
        """Add an element, at the end if it is new."""
        self._elements.setdefault(elt)

    def update(self, elts: Iterable[T]) -> None:
        """Add elements."""
        for elt in elts:
            self.add(elt)

    def __iter__(self) -> Iterator[T]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __contains__(self, elt: object) -> bool:
        return elt in self._elements


_CacheInfo = namedtuple("_CacheInfo", ["hits", "misses", "maxsize", "currsize"])


class WeakrefCachedFunc:
    """A function that keeps results as long as their first arguments live.

    They are those of the last `maxsize` calls. The first argument is held by a weak reference and compared as a key, the others are held.
    """

    def __init__(self, function: Callable[..., Any], maxsize: int | None) -> None:
        functools.update_wrapper(self, function)
        self._function, self._maxsize = function, maxsize
        self.cache_clear()

    def cache_clear(self) -> None:
        """Drop all results."""
        self._results: OrderedDict[Any, Any] = OrderedDict()
        self._hits = self._misses = 0

    def cache_info(self) -> _CacheInfo:
        """Return how many calls were in the cache and not, and its sizes."""
        return _CacheInfo(self._hits, self._misses, self._maxsize, len(self._results))

    def cache_keys(self) -> list[Any]:
        """Return the arguments of the calls whose results are held."""
        return [(first(), *rest) for first, *rest in self._results]

    def evict_weakref(self, arg0: Any) -> None:
        """Drop the results of calls with this first argument."""
        self._drop(weakref.ref(arg0))

    def _drop(self, reference: weakref.ref[Any]) -> None:
        for key in [key for key in self._results if key[0] == reference]:
            self._results.pop(key, None)

    def __call__(self, arg0: Any, /, *args: Any, **kwargs: Any) -> Any:
        key = weakref.ref(arg0, self._drop), args, tuple(sorted(kwargs.items()))
        if key in self._results:
            self._hits += 1
            self._results.move_to_end(key)
            return self._results[key]
        self._misses += 1
        result = self._results[key] = self._function(arg0, *args, **kwargs)
        if self._maxsize is not None and len(self._results) > self._maxsize:
            self._results.popitem(last=False)
        return result


def weakref_lru_cache(f: Callable[..., Any] | None = None, *, maxsize: int | None = 2048, **options: Any) -> Any:
    """Make a function keep results while their first arguments live.

    The last `maxsize` ones are kept, and the other arguments must be hashable. Without a function it returns a decorator. The options
    concern JAX's settings, and have no effect.
    """
    if f is None:
        return functools.partial(weakref_lru_cache, maxsize=maxsize)
    return WeakrefCachedFunc(f, maxsize)


def immutable(cls: type[T]) -> type[T]:
    """Make instances of a class refuse assignment to their attributes."""

    def refuse(self: Any, name: str, *value: Any) -> NoReturn:
        raise AttributeError(f"cannot assign to or delete field {name!r} of an immutable {cls.__name__}")

    methods = {"__deepcopy__": lambda self, memo: self, "__getstate__": lambda self: None, "__setstate__": lambda self, state: None}
    for name, method in (methods | dict.fromkeys(("__setattr__", "__delattr__"), refuse)).items():
        setattr(cls, name, method)
    return cls


class StrictABCMeta(abc.ABCMeta):
    """The type of abstract classes without registered subclasses."""

    def register(cls, subclass: Any) -> NoReturn:
        """Raise `NotImplementedError`."""
        raise NotImplementedError(f"{cls} does not support virtual subclasses")

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class StrictABC(metaclass=StrictABCMeta):
    """The base of abstract classes without registered subclasses."""

    __slots__ = ()


# Lists and names: `jax._src.util`.


def foreach(f: Callable[..., Any], *iterables: Iterable[Any]) -> None:
    """Call a function with the elements of iterables of one length."""
    for elements in zip(*iterables, strict=True):
        f(*elements)


def subs_list2(
    subs1: Sequence[int | None], subs2: Sequence[int | None], src1: Sequence[T], src2: Sequence[T], base: Iterable[T]
) -> list[T]:
    """Return elements of sources by position, the next of `base` for None.

    >>> subs_list2([0, None, None], [None, 1, None], "ab", "cd", "z")
    ['a', 'd', 'z']
    """
    rest = iter(base)
    pairs = zip(subs1, subs2, strict=True)
    return [src1[i] if i is not None else src2[j] if j is not None else next(rest) for i, j in pairs]


def toposort(end_nodes: Iterable[Any]) -> list[Any]:
    """Return nodes after their `parents`, from those that the end nodes follow from.

    >>> from types import SimpleNamespace as Node
    >>> first = Node(parents=[]); second = Node(parents=[first])
    >>> toposort([second]) == [first, second]
    True
    """
    order: dict[int, Any] = {}
    pending = [(node, False) for node in end_nodes][::-1]
    while pending:
        node, parents_done = pending.pop()
        if parents_done:
            order.setdefault(id(node), node)
        elif id(node) not in order:
            pending += [(node, True), *((parent, False) for parent in reversed(node.parents))]
    return list(order.values())


def fun_qual_name(fun: Callable[..., Any]) -> str:
    """Return a function's qualified name, of a partial one that of its function."""
    name = getattr(fun, "__qualname__", None)
    if name is None and isinstance(fun, functools.partial):
        return fun_qual_name(fun.func)
    return str(name or getattr(fun, "__name__", "<unnamed function>"))


def maybe_named_axis(axis: Any, if_pos: Callable[[int], T], if_named: Callable[[Any], T]) -> T:
    """Call one function for the position of an axis, and another for its name."""
    try:
        position = operator.index(axis)
    except TypeError:
        return if_named(axis)
    return if_pos(position)


def pprint_bytes(num_bytes: float) -> str:
    """Return a number of bytes as text.

    >>> pprint_bytes(1500)
    '1.50KB'
    """
    exponent = min(math.floor(math.log(num_bytes, 1000)), 4) if num_bytes > 0 else 0
    return f"{max(num_bytes, 0) / 1000**exponent:.2f}{('', 'K', 'M', 'G', 'T')[exponent]}B"


# Sizes: `jax._src.core`.


def definitely_equal(x: Any, y: Any) -> bool:
    """Return True if sizes are equal for every value of the symbolic ones.

    >>> definitely_equal(3, 3), definitely_equal(3, 4)
    (True, False)
    """
    if x is y:
        return True
    if isinstance(x, Tracer) or isinstance(y, Tracer):
        return False
    try:
        return bool(x == y)
    except InconclusiveDimensionOperation:
        return False


def definitely_equal_one_of_dim(d1: Any, dlist: Sequence[Any]) -> bool:
    """Return True if a size equals one of a list's."""
    return any(definitely_equal(d1, d) for d in dlist)


def definitely_equal_shape(s1: Sequence[Any], s2: Sequence[Any]) -> bool:
    """Return True if all sizes of two shapes are equal."""
    return len(s1) == len(s2) and all(map(definitely_equal, s1, s2))


def is_dim(v: Any) -> bool:
    """Return True if a value is a size: an integer, or symbolic."""
    return is_symbolic_dim(v) or (isinstance(v, (int, np.integer)) and not isinstance(v, bool))


def is_constant_shape(s: Sequence[Any]) -> bool:
    """Return True if no size of a shape is symbolic."""
    return not any(map(is_symbolic_dim, s))


def is_empty_shape(s: Sequence[Any]) -> bool:
    """Return True if a size of a shape is 0."""
    return any(definitely_equal(d, 0) for d in s)


def divide_shape_sizes(s1: Sequence[Any], s2: Sequence[Any]) -> Any:
    """Return how often the size of a shape has that of another one.

    Raises `InconclusiveDimensionOperation` if that is no integer.

    >>> divide_shape_sizes((4, 3), (2, 3))
    2
    """
    size, divisor = math.prod(s1), math.prod(s2)
    if definitely_equal(size, divisor):
        return 1
    quotient, rest = divmod(size, divisor) if not definitely_equal(divisor, 0) else (0, size)
    if not definitely_equal(rest, 0):
        raise InconclusiveDimensionOperation(f"the size of shape {tuple(s1)} is no multiple of that of {tuple(s2)}: {rest} are left")
    return quotient


def dilate_dim(d: Any, dilation: Any) -> Any:
    """Return the size of `d` elements with `dilation - 1` others between them."""
    return d if definitely_equal(dilation, 1) else max_dim(1 + dilation * (d - 1), 0)


def stride_dim(d: Any, window_size: Any, window_stride: Any) -> Any:
    """Return how many windows `d` elements have.

    >>> stride_dim(7, 3, 2)
    3
    """
    return max_dim((d - window_size) // window_stride + 1, 0)


def concretization_function_error(fun: Callable[..., Any], suggest_astype: bool = False) -> Callable[[Any, Any], NoReturn]:
    """Return a method that raises what the conversion of a tracer by `fun` raises."""
    kinds: Mapping[Any, type[Exception]] = {
        bool: TracerBoolError, hex: TracerIndexError, oct: TracerIndexError,
        operator.index: TracerIndexError,
    }  # fmt: skip
    hint = f", or convert it by x.astype({fun.__name__})" if suggest_astype else ""

    def error(self: Any, arg: Any) -> NoReturn:
        kind = kinds.get(fun, ConcretizationError)
        raise kind(f"{fun.__name__}() needs a number, and {arg!r:.80} is traced: compute with it outside of the transform{hint}")

    return error


def last_used(jaxpr: Jaxpr) -> dict[Var, Equation | None]:
    """Return the last equation that reads each variable, None for outputs."""
    last: dict[Var, Equation | None] = {v: None for v in jaxpr.outvars if not isinstance(v, Literal)}
    for eqn in reversed(jaxpr.eqns):
        for v in eqn.invars:
            if not isinstance(v, Literal):
                last.setdefault(v, eqn)
    return last


def clean_up_dead_vars(eqn: Equation, env: dict[Var, Any], last_used: Mapping[Var, Equation | None]) -> None:
    """Forget the values of the variables that an equation reads last."""
    for v in {v for v in eqn.invars if not isinstance(v, Literal)}:
        if last_used[v] is eqn:
            del env[v]


def jaxpr_const_args(jaxpr: Jaxpr | ClosedJaxpr) -> list[Any]:
    """Return constants that become arguments: none, since programs hold them."""
    return []


#: Marks that nothing here has: rules of JAX's checks and of its maps over axes, to which libraries add theirs.
custom_typechecks: dict[Any, Callable[..., Any]] = {}
aval_mapping_handlers: dict[type, Any] = {}
#: Types of Python's numbers that programs write as literals.
literalable_types: set[type] = {bool, int, float, complex, np.generic}
no_axis_name = object()


def _eq_meet(a: Any, b: Any) -> Array:
    """Return where values are equal in the less precise of their dtypes."""
    x, y = vnp.asarray(a), vnp.asarray(b)
    dtype = y.dtype if dtypes.promote_types(x.dtype, y.dtype) == x.dtype else x.dtype
    return lax.eq(x.astype(dtype), y.astype(dtype))


def make_iota(axis_size: int) -> Array:
    """Return the positions of an axis."""
    return lax.iota("int32", int(axis_size))


class CustomVJPException(Exception):
    """An error of derivatives by values in closures, which are computed here."""


def is_device_tpu(version: int | None = None, variant: str = "") -> bool:
    """Return False: no device is a TPU."""
    return False


def import_from_plugin(plugin_name: str, submodule_name: str, *, check_version: bool = True) -> None:
    """Return None: no plugin of JAX's is used."""


# Dtypes: `jax._src.dtypes` and `jax._src.lax.utils`.

#: Dtypes of Python's numbers, in 64 bits.
python_scalar_types_to_dtypes = {kind: np.dtype(kind) for kind in (bool, int, float, complex)}
python_scalar_types = set(python_scalar_types_to_dtypes)


def default_int_dtype() -> np.dtype:
    """Return the dtype of Python's integers."""
    return dtypes.default(np.dtype(np.int32))


def default_uint_dtype() -> np.dtype:
    """Return the dtype of unsigned integers."""
    return dtypes.default(np.dtype(np.uint32))


def default_float_dtype() -> np.dtype:
    """Return the dtype of Python's floats."""
    return dtypes.default(np.dtype(np.float32))


def default_complex_dtype() -> np.dtype:
    """Return the dtype of Python's complex numbers."""
    return dtypes.default(np.dtype(np.complex64))


default_types: dict[str, Callable[[], np.dtype]] = {
    "b": lambda: np.dtype(bool), "i": default_int_dtype, "u": default_uint_dtype, "f": default_float_dtype, "c": default_complex_dtype,
}  # fmt: skip


def to_numeric_dtype(dtype: Any) -> np.dtype:
    """Return int32 for booleans, and other dtypes as they are."""
    plain = dtypes.as_dtype(dtype)
    return np.dtype(np.int32) if plain == np.bool_ else plain


def to_floating_dtype(dtype: Any) -> np.dtype:
    """Return the dtype of the real numbers of a dtype's precision.

    >>> to_floating_dtype("complex128"), to_floating_dtype("int32")
    (dtype('float64'), dtype('float32'))
    """
    return dtypes.real_dtype(dtypes.to_inexact(dtypes.as_dtype(dtype)))


def scalar_type_to_dtype(typ: type, value: Any = None) -> np.dtype:
    """Return the dtype of a type of Python's numbers.

    Raises `OverflowError` for an integer `value` beyond it.
    """
    dtype = dtypes.as_dtype(typ)
    if typ is int and value is not None and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise OverflowError(f"Python int {value} too large to convert to {dtype.name}")
    return dtype


def coerce_to_array(x: Any, dtype: Any = None) -> np.ndarray:
    """Return a NumPy array, of a Python number in the dtype that it has in JAX."""
    return np.asarray(x, scalar_type_to_dtype(type(x), x) if dtype is None and type(x) in python_scalar_types else dtype)


def is_weakly_typed(x: Any) -> bool:
    """Return True for Python's numbers, and arrays whose dtype gives way to others."""
    return type(x) in (int, float, complex) or bool(getattr(x, "weak_type", False))


def is_weakly_typed_scalar(x: Any) -> bool:
    """Return True for Python's numbers and zero-dimensional arrays like them."""
    return type(x) in python_scalar_types or (bool(getattr(x, "weak_type", False)) and np.ndim(x) == 0)


def check_valid_dtype(dtype: Any) -> None:
    """Raise `DTypeError` for a dtype that arrays do not have."""
    if dtype not in dtypes.ALL:
        raise DTypeError(f"{dtype} is no dtype of arrays; they have {', '.join(sorted(d.name for d in dtypes.ALL))}")


def check_and_canonicalize_user_dtype(dtype: Any, fun_name: str | None = None) -> np.dtype:
    """Return the dtype that arrays have instead: of 32 bits, unless 64 are enabled."""
    if dtype is None or isinstance(dtype, Array):
        raise ArgumentError(f"{fun_name or 'dtype'}: a dtype is needed, got {dtype!r:.80}; that of an array is x.dtype")
    return dtypes.as_dtype(dtype)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Return True if a dtype is, or is of the kind, `arg2`, as `jax.numpy` does."""
    return key_dtypes.issubdtype(arg1, arg2)


def safe_to_cast(input_dtype_or_value: Any, output_dtype_or_value: Any) -> bool:
    """Return True if a dtype promotes to another one.

    >>> safe_to_cast("int16", "float32"), safe_to_cast("float32", "int16")
    (True, False)
    """
    source, target = (dtypes.result_type(x) for x in (input_dtype_or_value, output_dtype_or_value))
    return source == target or dtypes.promote_types(source, target) == target


def lattice_result_type(*args: Any) -> tuple[np.dtype, bool]:
    """Return the dtype that values promote to, and if it gives way to others."""
    return dtypes.result_type(*args), all(map(is_weakly_typed, args))


def short_dtype_name(dtype: Any) -> str:
    """Return a dtype's name as programs print it.

    >>> short_dtype_name(np.dtype("float32"))
    'f32'
    """
    name = str(getattr(dtype, "name", dtype))
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short)
    return name


def dtype_to_string(dtype: Any) -> str:
    """Return a dtype's name."""
    return str(getattr(dtype, "name", None) or np.dtype(dtype).name)


def input_dtype(x: Any, *unused: Any, out_dtype: Any = None, **options: Any) -> np.dtype:
    """Return the dtype of an operand, or `out_dtype`."""
    return x.dtype if out_dtype is None else dtypes.as_dtype(out_dtype)


def int_dtype_for_shape(shape: Sequence[Any], *, signed: bool) -> np.dtype:
    """Return an integer dtype for indices into a shape.

    >>> int_dtype_for_shape((3, 2**40), signed=True)
    dtype('int64')
    """
    narrow, wide = (np.dtype(np.int32), np.dtype(np.int64)) if signed else (np.dtype(np.uint32), np.dtype(np.uint64))
    for size in shape:
        if is_symbolic_dim(size):
            return dtypes.default(narrow)
        if size > np.iinfo(narrow).max:
            return wide
    return narrow


def int_dtype_for_dim(d: Any, *, signed: bool) -> np.dtype:
    """Return an integer dtype for indices below a size."""
    return int_dtype_for_shape((d,), signed=signed)


def _fft_norm(s: Array, func_name: str, norm: str) -> Array:
    """Return the factor of a Fourier transform of the sizes `s` by its `norm`."""
    if norm not in ("backward", "ortho", "forward"):
        raise ArgumentError(f'{func_name}: norm must be "backward", "ortho" or "forward", got {norm!r}')
    if norm == "backward":
        return vnp.array(1)
    size = vnp.prod(vnp.asarray(s, default_float_dtype()))
    factor = vnp.sqrt(size) if norm == "ortho" else size
    return factor if func_name.startswith("i") else 1 / factor


# Functions' signatures and trees: `jax._src.api_util` and `jax._src.tree_util`.


class PytreeLeaf:
    """What messages show in place of a leaf."""

    def __repr__(self) -> str:
        return "pytree leaf"


SENTINEL = object()


def api_hook(fun: T, tag: str) -> T:
    """Return a function as it is."""
    return fun


def fun_sourceinfo(fun: Callable[..., Any]) -> str:
    """Return a function's name with its file and line."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    plain = inspect.unwrap(fun)
    code = getattr(plain, "__code__", None)
    return f"{plain.__name__} at {code.co_filename}:{code.co_firstlineno}" if code else getattr(plain, "__name__", "<unknown>")


def resolve_kwargs(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return all arguments by their positions, with defaults.

    Raises `ArgumentTypeError` if some of `kwargs` have no position.

    >>> resolve_kwargs(lambda x, y=2: None, [], {"x": 1})
    (1, 2)
    """
    if isinstance(fun, functools.partial):
        fun = lambda *args, **kwargs: None  # noqa: E731  # its signature is that of calls
    bound = signature(fun).bind(*args, **kwargs)
    bound.apply_defaults()
    if passed := [name for name in bound.kwargs if name in kwargs]:
        raise ArgumentTypeError(f"The following keyword arguments could not be resolved to positions: {', '.join(passed)}")
    return bound.args


def broadcast_leaves(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the entry of a prefix tree for each leaf of a tree.

    >>> broadcast_leaves((1, 2), ({"a": 3, "b": 4}, 5))
    [1, 1, 2]
    """
    return list(tree.broadcast_prefix(prefix_tree, full_tree, is_leaf))


def tree_leaves_checked(treedef_expected: Any, pytree: Any) -> list[Any]:
    """Return the leaves of a tree; raise `TreeError` if it has another structure."""
    leaves, structure = tree.flatten(pytree)
    if structure != treedef_expected:
        raise TreeError(f"the tree must have the structure {treedef_expected}, got {structure}")
    return leaves


def treedef_is_strict_leaf(treedef: Any) -> bool:
    """Return True for the structure of a leaf."""
    return treedef.num_nodes == 1 and treedef.num_leaves == 1


# `jit` by its older name: `jax.experimental.pjit`.


def pjit(
    fun: Callable[..., Any],
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: Any = None,
    inline: bool = False,
    compiler_options: Any = None,
) -> Any:
    """Return `fun` jitted: `jit`, whose settings may be positional here."""
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    donated = {"donate_argnums": donate_argnums, "donate_argnames": donate_argnames}
    shardings = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    others = {"keep_unused": keep_unused, "device": device, "backend": backend, "inline": inline, "compiler_options": compiler_options}
    return jit(fun, **static, **donated, **shardings, **others)


# Assertions: `jax._src.public_test_util`.


def check_close(xs: Any, ys: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raise `AssertionError` unless the arrays of two trees are near each other.

    Tolerances are numbers, or one for each dtype, and are multiplied by the number of elements.
    """

    def check(x: Any, y: Any) -> None:
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape, f"{err_msg}: shapes {x.shape} and {y.shape}"
        largest = [x.size * max(_tolerance(a.dtype, limits) for a in (x, y)) for limits in (atol, rtol)]
        if dtypes.float0 not in (x.dtype, y.dtype):  # which has one value
            wide = [a.astype(np.float32) if a.dtype.kind == "V" else a for a in (x, y)]  # dtypes that are not NumPy's
            np.testing.assert_allclose(wide[0], wide[1], atol=largest[0], rtol=largest[1], err_msg=err_msg)

    tree.map(check, xs, ys)


def _tolerance(dtype: np.dtype, limits: Any) -> float:
    """Return a dtype's tolerance among `limits`, by default its last digits."""
    if limits is not None and not isinstance(limits, Mapping):
        return limits
    chosen = {np.dtype(kind): limit for kind, limit in (limits or {}).items()}
    default = 10.0 ** -dtypes.finfo(dtype).precision if dtype in dtypes.INEXACT else 0.1 if dtype in dtypes.STORAGE_FLOATS else 0.0
    return chosen.get(dtype, default)


# Types of annotations: `jax._src.typing`.


class SupportsShape(Protocol):
    """What has a `shape`."""

    @property
    def shape(self, /) -> tuple[int, ...]:
        """The sizes of the dimensions."""


class SupportsSize(Protocol):
    """What has a `size`."""

    @property
    def size(self, /) -> int:
        """The number of elements."""


class SupportsNdim(Protocol):
    """What has an `ndim`."""

    @property
    def ndim(self, /) -> int:
        """The number of dimensions."""


class DuckTypedArray(Protocol):
    """What has a `dtype` and a `shape`."""

    @property
    def dtype(self) -> Any:
        """The dtype."""

    @property
    def shape(self) -> Sequence[Any]:
        """The sizes of the dimensions."""


class DeprecatedArg:
    """The default of a parameter that should not be passed."""

    def __repr__(self) -> str:
        return "Deprecated"


AnyInt = int | np.integer
StaticIndex = AnyInt | slice | type(...)
Index = StaticIndex | None | Sequence[AnyInt] | Array | np.ndarray
