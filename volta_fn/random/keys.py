"""Keys, the explicit state of random numbers; arguments of samplers."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from volta_fn import dtypes, lax, settings, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapeDtypeStruct, canonical_shape
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, BroadcastError, DTypeError, IntegerOverflowError, ShapeError
from volta_fn.primitives.declare import to_dtype
from volta_fn.primitives.random import PHILOX_WORDS, check_key_data, random_bits, random_fold_in, random_split

# Arguments of samplers: shape, dtype, and parameters that broadcast to the shape.

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int32)


def dtype_in(function: str, dtype: Any, default: np.dtype, allowed: frozenset[np.dtype], kind: str) -> np.dtype:
    """Return the requested dtype or the default; raise `DTypeError` for other kinds."""
    result_dtype = dtypes.default(default) if dtype is None else dtypes.as_dtype(dtype)
    if result_dtype not in allowed:
        raise DTypeError(f"{function}: dtype must be {kind}, got {result_dtype.name}")
    return result_dtype


def float_dtype(function: str, dtype: Any) -> np.dtype:
    """Return the requested floating dtype, float32 by default."""
    return dtype_in(function, dtype, FLOAT, dtypes.FLOATS, "a real floating dtype")


def int_dtype(function: str, dtype: Any) -> np.dtype:
    """Return the requested integer dtype, int32 by default."""
    return dtype_in(function, dtype, INT, dtypes.INTEGERS, "an integer dtype")


def shape_with(function: str, shape: Sequence[int] | None, **parameters: Array | np.ndarray) -> Shape:
    """Return the requested shape, by default the one that the parameters broadcast to.

    Raises `ShapeError` if the parameters do not broadcast to the requested shape.
    """
    shapes = [p.shape for p in parameters.values()]
    if shape is None:
        return lax.broadcast_shapes((), *shapes)
    sizes = canonical_shape(shape)
    try:
        fits = lax.broadcast_shapes(sizes, *shapes) == sizes
    except BroadcastError:
        fits = False
    if not fits:
        listed = ", ".join(f"{name} of shape {p.shape}" for name, p in parameters.items())
        raise ShapeError(f"{function}: {listed} must broadcast to shape {sizes}; leave shape out to take theirs")
    return sizes


def parameters(function: str, dtype: Any, shape: Sequence[int] | None, **operands: Any) -> tuple[Any, ...]:
    """Return a sample's floating dtype and shape, and its parameters in that dtype."""
    result_dtype = float_dtype(function, dtype)
    values = {name: to_dtype(value, result_dtype) for name, value in operands.items()}
    return result_dtype, shape_with(function, shape, **values), *values.values()


def known_integers(value: Any) -> np.ndarray | None:
    """Return integers of the host as an array; None for arrays, tracers and others.

    On the host they have 64 bits, where the device may hold only 32.
    """
    if type(value) is int:
        return np.asarray(value, dtypes.scalar_dtype(value)[0])
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype in dtypes.INTEGERS:
        return np.asarray(value)
    return None


# Keys: the explicit state of random numbers.
#
# A key is a value: using it twice gives the same numbers twice, so split it first. A *typed* key (or array of keys), `PRNGKeyArray`, wraps
# *raw* key data: a uint32 array with a last dimension of two words, or four of the implementations "rbg" and "unsafe_rbg". Every function
# takes either kind, and those that make keys from keys return the kind that they were given.

#: The implementation of keys of two words.
THREEFRY = "threefry2x32"
#: The implementations of keys of four words, whose bits are Philox's. "unsafe_rbg" also derives keys by it, which is no hash: they may be
#: correlated.
RBG, UNSAFE_RBG = "rbg", "unsafe_rbg"
#: The names of implementations in dtypes.
_TAGS = {THREEFRY: "fry", RBG: "rbg", UNSAFE_RBG: "urbg"}
#: How many blocks of bits stand for a hash in "unsafe_rbg".
_UNSAFE_STEPS = 10
_UINT32, _INT64 = np.dtype(np.uint32), np.dtype(np.int64)
#: The lowest 32 bits of an integer.
_LOW_32 = 0xFFFFFFFF


class extended(np.generic):  # JAX's name
    """The kind of dtypes whose elements are no numbers, such as keys."""


class prng_key(extended):
    """The kind of the dtypes of random keys."""


@dataclass(frozen=True)
class KeyType(dtypes.ExtendedDType):
    """The dtype of typed keys: the name of the algorithm that maps keys to bits."""

    impl: str = THREEFRY

    @property
    def name(self) -> str:  # type: ignore[override]  # it follows from the implementation
        """The dtype as it is written, such as "key<fry>"."""
        return f"key<{_TAGS[self.impl]}>"

    @property
    def type(self) -> type[prng_key]:
        """The kind of dtype, which libraries that check types of arrays look at."""
        return prng_key

    @property
    def words(self) -> int:
        """How many words a key has."""
        return 2 if self.impl == THREEFRY else PHILOX_WORDS

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return 4 * self.words

    def describe(self, shape: Shape) -> PRNGKeyArray:
        """Return keys of this shape whose data are described, not known."""
        return PRNGKeyArray(ShapeDtypeStruct((*shape, self.words), _UINT32), self.impl)

    def __repr__(self) -> str:
        return self.name


if TYPE_CHECKING:
    _Base = Array  # so that keys fit where programs written for JAX say Array
else:
    _Base = object


@tree.register_pytree_node_class
class PRNGKeyArray(_Base):
    """An immutable array of random keys, made by `volta_fn.random.key` and `split`.

    It is a pytree whose leaf is the raw data, so it passes through `jit`, `vmap`, `scan` and the rest like an array of keys.

    >>> keys = vf.random.split(vf.random.key(0), 3)
    >>> keys.shape, keys[0] == keys[0]
    ((3,), Array(True, dtype=bool))
    """

    __slots__ = ("_data", "_impl")

    def __init__(self, data: Any, impl: str = THREEFRY) -> None:
        self._data = data
        self._impl = impl

    def tree_flatten(self) -> tuple[tuple[Any], str]:
        """Return the raw data as the leaf, and the static name of the implementation."""
        return (self._data,), self._impl

    @classmethod
    def tree_unflatten(cls, impl: str, children: Sequence[Any]) -> PRNGKeyArray:
        """Return a key array around the given data."""
        return cls(children[0], impl)

    def _no_arithmetic(self, other: Any) -> NoReturn:
        raise ArgumentTypeError("there is no arithmetic of random keys: random.fold_in(key, number) makes the key of a number")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __xor__ = _no_arithmetic

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of keys: that of the data without its last dimension."""
        return self._data.shape[:-1]

    @property
    def ndim(self) -> int:
        """The number of dimensions; 0 for a single key."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of keys."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> KeyType:  # type: ignore[override]  # keys have a dtype of their own
        """The type of the keys."""
        return KeyType(self._impl)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a single key; split it to get several")
        return self.shape[0]

    def __iter__(self) -> Iterator[PRNGKeyArray]:
        if not self.shape:
            raise ArgumentTypeError("iteration over a single key; split it to get several")
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, index: Any) -> PRNGKeyArray:
        return PRNGKeyArray(self._data[_with_words(index)], self._impl)

    @property
    def at(self) -> KeyUpdates:  # type: ignore[override]
        """``keys.at[index].set(key)`` and ``.get()``, as of arrays."""
        return KeyUpdates(self)

    def reshape(self, *shape: Any, order: str = "C", out_sharding: Any = None) -> PRNGKeyArray:
        """Reshape to a shape given as integers or one sequence; one of them may be -1.

        `order` must be "C"; `out_sharding` has no effect.
        """
        if order != "C":
            raise ArgumentError(f"reshape: keys have the order of rows, so order must be 'C', got {order!r}")
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        explicit_size = math.prod(n for n in sizes if n != -1)
        full = [self.size // max(explicit_size, 1) if n == -1 else n for n in sizes]
        return PRNGKeyArray(lax.reshape(self._data, (*full, self._data.shape[-1])), self._impl)

    def flatten(self, order: str = "C", *, out_sharding: Any = None) -> PRNGKeyArray:
        """Return the keys along one dimension, as `reshape` does."""
        return self.reshape(-1, order=order, out_sharding=out_sharding)

    ravel = flatten

    def squeeze(self, axis: int | Sequence[int] | None = None) -> PRNGKeyArray:
        """Drop dimensions of size 1: all of them, or those given."""
        axes = [i for i, n in enumerate(self.shape) if n == 1] if axis is None else [axis] if isinstance(axis, int) else axis
        return PRNGKeyArray(lax.squeeze(self._data, [i % self.ndim for i in axes]), self._impl)

    def transpose(self, *axes: Any) -> PRNGKeyArray:
        """Permute the dimensions, by default in reverse."""
        order = (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or range(self.ndim)[::-1]
        return PRNGKeyArray(lax.transpose(self._data, [*[i % self.ndim for i in order], self.ndim]), self._impl)

    @property
    def T(self) -> PRNGKeyArray:
        """The keys with the dimensions in reverse."""
        return self.transpose()

    def copy(self) -> PRNGKeyArray:  # type: ignore[override]
        """Return the same keys, which cannot be changed."""
        return self

    @property
    def itemsize(self) -> int:
        """The bytes of a key."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of the data."""
        return self._data.nbytes

    @property
    def sharding(self) -> Any:
        """How the data lies on devices."""
        return self._data.sharding

    def devices(self) -> Any:
        """Return the devices of the data."""
        return self._data.devices()

    def block_until_ready(self) -> PRNGKeyArray:
        """Wait until the data is computed, and return self."""
        self._data.block_until_ready()
        return self

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, PRNGKeyArray):
            return NotImplemented
        return lax.reduce_and(lax.eq(self._data, other._data), (-1,))

    def __ne__(self, other: object) -> Any:
        if not isinstance(other, PRNGKeyArray):
            return NotImplemented
        return lax.bitwise_not(self == other)

    __hash__ = None  # keys compare as arrays do

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise ArgumentTypeError("a key is not an array of numbers; volta_fn.random.key_data(key) returns its words")

    def __repr__(self) -> str:
        if isinstance(self._data, Array) and not isinstance(self._data, Tracer):
            return f"PRNGKeyArray({self.shape}, dtype={self.dtype}) overlaying:\n{self._data!s}"
        return f"PRNGKeyArray({self._data!r})"


for _name in ("committed", "copy_to_host_async", "delete", "device", "is_deleted", "is_fully_addressable", "is_fully_replicated"):
    setattr(PRNGKeyArray, _name, property(operator.attrgetter(f"_data.{_name}")))


def _with_words(index: Any) -> tuple[Any, ...]:
    """Return an index of keys as one of their data, with all words."""
    entries = index if isinstance(index, tuple) else (index,)
    rest = (slice(None),) if any(entry is Ellipsis for entry in entries) else (Ellipsis, slice(None))
    return (*entries, *rest)


class KeyUpdates:
    """Updates of an array of keys at indices, its `at` attribute."""

    def __init__(self, keys: PRNGKeyArray, index: Any = Ellipsis) -> None:
        self._keys, self._index = keys, index

    def __getitem__(self, index: Any) -> KeyUpdates:
        return KeyUpdates(self._keys, index)

    def get(self, **options: Any) -> PRNGKeyArray:
        """Return the keys at the index; the options are those of arrays."""
        return PRNGKeyArray(self._keys._data.at[_with_words(self._index)].get(**options), self._keys._impl)

    def set(self, values: PRNGKeyArray, **options: Any) -> PRNGKeyArray:
        """Return the keys with others at the index; the options are those of arrays."""
        if not isinstance(values, PRNGKeyArray):
            raise ArgumentTypeError(f"an array of keys holds keys, got {values!r:.40} of type {type(values).__name__}")
        return PRNGKeyArray(self._keys._data.at[_with_words(self._index)].set(values._data, **options), self._keys._impl)


# Keys from seeds and words.


def key(seed: Any, *, impl: str | KeyType | None = None, dtype: str | KeyType | None = None) -> PRNGKeyArray:
    """Create a typed key from an integer seed.

    The lowest 64 bits count (of a 32-bit integer all 32, as an unsigned number). `impl`, or `dtype`, may name the algorithm:
    "threefry2x32", "rbg" or "unsafe_rbg"; the default is the setting `jax_default_prng_impl`. Raises `DTypeError` for a seed that is no
    integer and `ShapeError` for an array of seeds (use `vmap`).

    >>> vf.random.key(42)
    PRNGKeyArray((), dtype=key<fry>) overlaying:
    [ 0 42]
    """
    name = _implementation("key", impl, dtype)
    return PRNGKeyArray(seeded("key", _moved(seed), name), name)


def as_key(key_or_seed: Any) -> Any:
    """Return a key as it is, or the key of an integer seed."""
    return key(key_or_seed) if isinstance(key_or_seed, (int, np.integer)) else key_or_seed


def PRNGKey(seed: Any, *, impl: str | KeyType | None = None) -> Array:
    """Create a raw key, uint32 words, from a seed; `key` makes typed ones.

    >>> vf.random.PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    return seeded("PRNGKey", _moved(seed), _implementation("PRNGKey", impl, None))


def _implementation(function: str, impl: str | KeyType | None, dtype: str | KeyType | None) -> str:
    if impl is not None and dtype is not None:
        raise ArgumentError(f"{function}: give impl or dtype, not both")
    choice = impl if dtype is None else dtype
    name = choice.impl if isinstance(choice, KeyType) else choice
    if name is None:
        return settings.current.default_prng_impl
    if name not in _TAGS:
        raise ArgumentError(f"{function}: {name!r} is not a known random number generator; they are {', '.join(_TAGS)}")
    return name


def _moved(seed: Any) -> Any:
    """Return a seed with the offset of the settings."""
    return seed + settings.current.random_seed_offset if settings.current.random_seed_offset else seed


def seeded(function: str, seed: Any, impl: str) -> Array:
    """Return the words of an implementation's key for a seed; errors name `function`."""
    words = _threefry_seeded(function, seed)
    return words if impl == THREEFRY else lax.concatenate([words, words], 0)


def _threefry_seeded(function: str, seed: Any) -> Array:
    if isinstance(seed, PRNGKeyArray):
        raise ArgumentTypeError(f"{function}: the seed must be an integer, got a key; use split or fold_in to make keys from keys")
    if isinstance(seed, str):
        raise ArgumentTypeError(f"{function}: the seed must be an integer, got {seed!r} of type str")
    if type(seed) is int and not -(2**63) <= seed < (2**63 if settings.current.permissive else 2**64):
        raise IntegerOverflowError(f"{function}: the seed {seed} does not fit 64 bits; pass a hash of it")
    if type(seed) is int and dtypes.canonical(_INT64) != _INT64:  # of which the lower word counts, as in JAX
        return as_value(np.array([0, seed & _LOW_32], _UINT32))
    host_value = known_integers(seed)
    value = as_value(seed) if host_value is None else host_value
    if value.dtype not in dtypes.INTEGERS | dtypes.BOOL:
        raise DTypeError(f"{function}: the seed must be an integer, got a value of dtype {value.dtype.name}")
    if value.shape:
        raise ShapeError(f"{function}: the seed must be one integer, got an array of shape {value.shape}. Use volta_fn.vmap for several.")
    if isinstance(value, np.ndarray):
        upper = int(value) >> 32 if dtypes.canonical(value.dtype).itemsize == 8 else 0
        return as_value(np.array([upper & _LOW_32, int(value) & _LOW_32], _UINT32))
    high: Any = lax.shift_right_logical(value, value.dtype.type(32)) if value.dtype.itemsize == 8 else np.uint32(0)
    words = [lax.convert_element_type(word, _UINT32) for word in (high, value)]
    return lax.concatenate([lax.reshape(word, (1,)) for word in words], 0)


def wrap_key_data(key_bits_array: Any, *, impl: str | KeyType | None = None, dtype: str | KeyType | None = None) -> PRNGKeyArray:
    """Wrap words, a uint32 array (..., words of a key), as typed keys.

    >>> raw = vf.random.PRNGKey(7)
    >>> vf.random.wrap_key_data(raw) == vf.random.key(7)
    Array(True, dtype=bool)
    """
    data, name = as_value(key_bits_array), _implementation("wrap_key_data", impl, dtype)
    check_key_data("wrap_key_data", data.aval)
    if data.shape[-1] != KeyType(name).words:
        raise ShapeError(f"wrap_key_data: a key of {name!r} does not have {data.shape[-1]} words, got {data.aval}")
    return PRNGKeyArray(data, name)


def key_data(keys: Any) -> Array:
    """Return the words of typed or raw keys as a uint32 array.

    >>> vf.random.key_data(vf.random.key(7))
    Array([0, 7], dtype=uint32)
    """
    return _data_of("key_data", keys)


def key_impl(keys: Any) -> str:
    """Return the name of the keys' algorithm."""
    return _impl_of(keys, _data_of("key_impl", keys))


def key_dtype(impl_spec: str | KeyType | None = None) -> KeyType:
    """Return the type of keys for an algorithm (default: that of the setting)."""
    return KeyType(_implementation("key_dtype", impl_spec, None))


# Keys from keys.


def _data_of(function: str, keys: Any) -> Array:
    if isinstance(keys, PRNGKeyArray):
        return keys._data
    if isinstance(keys, (int, float, tuple, list)):
        raise DTypeError(
            f"{function}: the first argument is a random key, got {keys!r:.40}. Make one with key = random.key(0), "
            f"and write random.{function}(key, …); key, subkey = random.split(key) makes new ones"
        )
    data = as_value(keys)
    check_key_data(function, data.aval)
    if settings.current.legacy_prng_key != "allow" and not _called_by_random():
        message = (
            f"Legacy uint32 key array passed as key to jax.random function. {function} got one, where jax_legacy_prng_key is "
            f"{settings.current.legacy_prng_key!r}; make keys with random.key, or wrap the data with random.wrap_key_data"
        )
        if settings.current.legacy_prng_key == "error":
            raise ArgumentError(message)
        warnings.warn(message, UserWarning, stacklevel=2)
    return data


def _called_by_random() -> bool:
    """Return True if a function of this package called the one that looks at a key.

    Such functions pass on raw data of keys that they have looked at.
    """
    frame, functions = sys._getframe(2), 0
    while frame is not None and functions < 2:
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        functions += name.startswith("volta_fn.random") and not function.startswith("_") and function != "single_key"
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return functions > 1


def single_key(function: str, key: Any) -> Array:
    """Return the data of one key, typed or raw; raise `ShapeError` for several keys."""
    data = _data_of(function, key)
    if data.ndim != 1:
        raise ShapeError(f"{function} takes a single key, got an array of keys of shape {data.shape[:-1]}. Use volta_fn.vmap for several.")
    return data


def _impl_of(keys: Any, data: Array) -> str:
    """Return the implementation of keys; raw ones have it by their words."""
    if isinstance(keys, PRNGKeyArray):
        return keys._impl
    if data.shape[-1] == 2:
        return THREEFRY
    return RBG if settings.current.default_prng_impl == THREEFRY else settings.current.default_prng_impl


def _like(key: Any, data: Array) -> Any:
    return PRNGKeyArray(data, key._impl) if isinstance(key, PRNGKeyArray) else data


Key = TypeVar("Key")


def split(key: Key, num: int | Sequence[int] = 2) -> Key:
    """Derive `num` independent keys (or an array of keys of that shape) from a key.

    >>> key, subkey = vf.random.split(vf.random.key(0))
    >>> vf.random.split(key, (2, 3)).shape
    (2, 3)
    """
    shape = canonical_shape((num,) if isinstance(num, (int, np.integer)) else num, "num")
    data = single_key("split", key)
    if _impl_of(key, data) == UNSAFE_RBG:
        blocks = random_bits(data, (math.prod(shape), _UNSAFE_STEPS, PHILOX_WORDS))
        return _like(key, lax.reshape(lax.index_in_dim(blocks, 0, 1, keepdims=False), (*shape, PHILOX_WORDS)))
    return _like(key, random_split(data, shape))


def fold_in(key: Key, data: Any) -> Key:
    """Derive a new key from a key and an integer, taken modulo 2^32.

    >>> vf.random.fold_in(vf.random.PRNGKey(0), 1)
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    words = single_key("fold_in", key)
    if isinstance(data, int) and not (0 if settings.current.permissive else -(2**31)) <= data < 2**32:
        raise IntegerOverflowError(f"fold_in: data must fit uint32, got {data}")
    host_value = known_integers(np.uint32(data & _LOW_32) if type(data) is int else data)
    value = as_value(data if host_value is None else host_value.astype(np.uint32))  # the lowest 32 bits, which every device supports
    if value.shape:
        raise ShapeError(f"fold_in: data must be one integer, got an array of shape {value.shape}. Use volta_fn.vmap for several.")
    if _impl_of(key, words) == UNSAFE_RBG:
        blocks = random_bits(seeded("fold_in", value, UNSAFE_RBG), (_UNSAFE_STEPS, PHILOX_WORDS))
        return _like(key, lax.bitwise_xor(words, lax.index_in_dim(blocks, -1, keepdims=False)))
    return _like(key, random_fold_in(words, value))


def clone(key: Key) -> Key:
    """Return the same key. In JAX it marks intended reuse, which is not checked here."""
    return _like(key, _data_of("clone", key))
