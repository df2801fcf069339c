"""Hashable wrappers, caches and zeros of JAX's private modules."""

from __future__ import annotations

import functools
import operator
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.compat.internals import fun_name, promote_dtypes_inexact
from volta_fn.core.arrays.array import Array, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive, Zero
from volta_fn.errors import ArgumentError

T = TypeVar("T")

#: Primitives whose lowering needs the devices; no lowering does here.
prim_requires_devices_during_lowering: set[Primitive] = set()


def p2tz(primal_value: Any) -> Zero:
    """Return the zero tangent of a value."""
    return Zero(aval_of(primal_value).tangent_aval())


#: The zero cotangent of a value, whose type is that of tangents.
p2cz = p2tz


def a2tz(primal_aval: ShapedArray) -> Zero:
    """Return the zero tangent of values of a type."""
    return Zero(primal_aval.tangent_aval())


def _fft_norm(s: Any, func_name: str, norm: str) -> Array:
    """Return the factor of a transform over `s` elements.

    An inverse one divides by it. Raises `ArgumentError` for a norm other than "backward", "ortho" and "forward".
    """
    if norm == "backward":
        return vnp.array(1)
    if norm not in ("ortho", "forward"):
        raise ArgumentError(f'norm is "backward", "ortho" or "forward", got {norm!r}')
    (lengths,) = promote_dtypes_inexact(s)
    size = vnp.prod(lengths)
    divisor = vnp.sqrt(size) if norm == "ortho" else size
    return divisor if func_name.startswith("i") else 1 / divisor


def _eq_meet(a: Any, b: Any) -> Array:
    """Compare two values in the narrower of their dtypes."""
    a_dtype, b_dtype = aval_of(a).dtype, aval_of(b).dtype
    if a_dtype != b_dtype:
        narrow = b_dtype if vnp.promote_types(a_dtype, b_dtype) == a_dtype else a_dtype
        a, b = (lax.convert_element_type(value, narrow) for value in (a, b))
    return lax.eq(a, b)


def foreach(f: Callable[..., Any], *args: Iterable[Any]) -> None:
    """Call `f` with the entries of sequences of one length."""
    for entries in zip(*args, strict=True):
        f(*entries)


def subs_list2(
    subs1: Sequence[int | None], subs2: Sequence[int | None], src1: Sequence[T], src2: Sequence[T], base: Iterable[T]
) -> list[T]:
    """Return entries of `src1`, else `src2`, by indices, else the next of `base`."""
    rest = iter(base)
    pairs = zip(subs1, subs2, strict=True)
    return [src1[i] if i is not None else src2[j] if j is not None else next(rest) for i, j in pairs]


def fun_qual_name(fun: Callable[..., Any]) -> str:
    """Return a function's qualified name, also of a partial one."""
    while isinstance(fun, functools.partial) and not hasattr(fun, "__qualname__"):
        fun = fun.func
    return getattr(fun, "__qualname__", None) or fun_name(fun)


def maybe_named_axis(axis: Any, if_pos: Callable[[int], T], if_named: Callable[[Any], T]) -> T:
    """Call `if_pos` with an axis that is an integer, else `if_named`."""
    try:
        position = operator.index(axis)
    except TypeError:
        return if_named(axis)
    return if_pos(position)


def pprint_bytes(num_bytes: float) -> str:
    """Return a number of bytes with a decimal prefix, as "1.50KB"."""
    if num_bytes <= 0:
        return "0.00B"
    exponent = min(int(np.log10(num_bytes) / 3 + 1e-12), 4)
    return f"{num_bytes / 1000**exponent:.2f}{('', 'K', 'M', 'G', 'T')[exponent]}B"


class Unhashable:
    """A value in a wrapper that cannot be hashed."""

    __slots__ = ("val",)

    def __init__(self, val: Any) -> None:
        self.val = val

    def __eq__(self, other: object) -> bool:
        return bool(self.val == other.val) if isinstance(other, type(self)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Hashable(Unhashable):
    """A value in a wrapper that is hashed as the value."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # the base has none
        return hash(self.val)


class HashableWrapper:
    """A value that is compared by itself if it can be hashed, else by its identity."""

    def __init__(self, x: Any) -> None:
        self.x = x
        try:
            self.hash: int | None = hash(x)
        except TypeError:
            self.hash = None

    def __hash__(self) -> int:
        return id(self.x) if self.hash is None else self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashableWrapper):
            return False
        return self.x is other.x if self.hash is None else bool(self.x == other.x)


class HashableFunction:
    """A function that is compared by its code and by `closure`, its variables."""

    def __init__(self, f: Callable[..., Any], closure: Any) -> None:
        self.f, self.closure = f, closure

    def _key(self) -> Any:
        return self.f.__code__, self.closure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableFunction) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<hashable {self.f.__name__} with closure={self.closure}>"


class HashablePartial:
    """A partial function that is compared by its code and arguments."""

    def __init__(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.f, self.args, self.kwargs = f, args, kwargs

    def _key(self) -> Any:
        return self.f.__code__, self.args, tuple(sorted(self.kwargs.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashablePartial) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*self.args, *args, **self.kwargs, **kwargs)


class OrderedSet(Generic[T]):
    """A set whose elements stay in the order in which they came."""

    def __init__(self) -> None:
        self._elements: dict[T, None] = {}

    def add(self, elt: T) -> None:
        """Add an element."""
        self._elements[elt] = None

    def update(self, elts: Iterable[T]) -> None:
        """Add elements."""
        self._elements.update(dict.fromkeys(elts))

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
    """Make a function keep its results while their first arguments live.

    Without a function it returns a decorator. The options concern JAX's settings, and have no effect.
    """
    if f is None:
        return functools.partial(weakref_lru_cache, maxsize=maxsize)
    return WeakrefCachedFunc(f, maxsize)
