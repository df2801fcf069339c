"""Implementations of random keys, and functions of arrays of them.

An implementation, by the names of `jax.extend.random`, is the name of an algorithm together with its keys' shape:
`key(seed, impl=implementation.name)` makes keys of it. Programs define none of their own.

Functions move or compare elements, of other arrays too. The words of a key lie along a last dimension of the data, and all move alike:
`of_keys` maps such a function over them. The functions of `jax.lax` have names that begin with ``lax_`` here.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, NewType

import numpy as np

from volta_fn import lax as _lax
from volta_fn import numpy as _numpy
from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError
from volta_fn.extend.dtypes import convert_element_type as _convert_element_type
from volta_fn.primitives.data_movement.movement import broadcast_in_dim
from volta_fn.primitives.random import PHILOX_WORDS, random_bits, threefry2x32
from volta_fn.random.keys import RBG, THREEFRY, UNSAFE_RBG, KeyType, PRNGKeyArray, key, seeded, wrap_key_data
from volta_fn.transforms.vmap import vmap


class PRNGImpl(NamedTuple):
    """An algorithm's name, the shape of a key's words, and its name in dtypes."""

    name: str
    key_shape: tuple[int, ...]
    tag: str


#: The type of keys, for annotations.
Key = NewType("Key", PRNGKeyArray)

threefry_prng_impl = PRNGImpl(THREEFRY, (2,), "fry")
rbg_prng_impl = PRNGImpl(RBG, (PHILOX_WORDS,), "rbg")
unsafe_rbg_prng_impl = PRNGImpl(UNSAFE_RBG, (PHILOX_WORDS,), "urbg")


def seed_with_impl(impl: PRNGImpl, seed: Any) -> PRNGKeyArray:
    """Return the key of an implementation for a seed.

    >>> seed_with_impl(rbg_prng_impl, 0).dtype.name
    'key<rbg>'
    """
    return key(seed, impl=impl.name)


def random_seed(seeds: Any, impl: PRNGImpl) -> PRNGKeyArray:
    """Return an array of keys, one for each seed.

    Raises `ArgumentError` for an array without seeds.

    >>> random_seed(jnp.arange(3), threefry_prng_impl).shape
    (3,)
    """
    numbers = seeds if isinstance(seeds, int) else as_value(seeds)
    if isinstance(numbers, int) or not numbers.ndim:
        return key(numbers, impl=impl.name)
    if not numbers.size:
        raise ArgumentError(f"random_seed: there must be a seed for each key, got the shape {numbers.shape}")
    keys = [key(number, impl=impl.name) for number in numbers.ravel()]
    stacked = _numpy.stack([k._data for k in keys]).reshape(*numbers.shape, *impl.key_shape)
    return PRNGKeyArray(stacked, impl.name)


def threefry_2x32(keypair: Any, count: Any) -> Array:
    """Encipher the numbers of a uint32 array by Threefry with a key of two words.

    The first half of the elements is enciphered with the second, after a zero where their number is odd. Raises `ArgumentTypeError` for
    other dtypes.

    >>> [hex(word) for word in threefry_2x32((jnp.uint32(0), jnp.uint32(0)), jnp.zeros(2, "uint32"))]
    ['0x6b200159', '0x99ba4efe']
    """
    first_key, second_key = (as_value(word) for word in keypair)
    counts = as_value(count)
    if {a.dtype for a in (first_key, second_key, counts)} != {np.dtype(np.uint32)}:
        raise ArgumentTypeError(f"threefry_2x32 enciphers uint32 numbers, got {first_key.dtype}, {second_key.dtype} and {counts.dtype}")
    is_odd = counts.size % 2
    numbers = _numpy.concatenate([counts.ravel(), _numpy.zeros(is_odd, "uint32")]).reshape(2, -1)
    words = _numpy.concatenate(threefry2x32(first_key, second_key, numbers[0], numbers[1]))
    return words[: counts.size].reshape(counts.shape)


def threefry_seed(seed: Any) -> Array:
    """Return the two words of Threefry's key for an integer seed.

    >>> threefry_seed(jnp.int32(42))
    Array([ 0, 42], dtype=uint32)
    """
    return seeded("threefry_seed", seed, THREEFRY)


def threefry_random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> Array:
    """Return random bits by the two words of a key of Threefry's.

    >>> threefry_random_bits(threefry_seed(jnp.int32(42)), 16, (2,))
    Array([ 5026, 12505], dtype=uint16)
    """
    return random_bits(key, shape, bit_width)


# Functions of arrays and of keys.


def of_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that moves elements of arrays move keys as well.

    >>> of_keys(vf.numpy.stack)([vf.random.key(0), vf.random.key(1)]).shape
    (2,)
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = next((value for value in (*args, *kwargs.values()) if isinstance(value, KeyType)), None)
        if dtype is not None:
            has_keys = any(map(_is_key, tree.leaves((args, kwargs), is_leaf=_is_key)))
            arguments, options = _replaced(args, kwargs, None if has_keys else np.uint32)
            values = call(*arguments, **options)
            if not has_keys:
                return wrap_key_data(broadcast_in_dim(values, (*values.shape, dtype.words), range(values.ndim)), dtype=dtype)
            if values.dtype != dtype:
                raise DTypeError(f"keys of the type {values.dtype} are none of the type {dtype}")
            return values
        try:
            return function(*args, **kwargs)
        except (ArgumentTypeError, DTypeError):
            leaves, structure = tree.flatten((args, kwargs), is_leaf=_is_key)
            if not any(map(_is_key, leaves)):
                raise
        return _mapped(function, leaves, structure)

    return call


def of_two_keys(function: Callable[..., Any], of_keys: Callable[[PRNGKeyArray, PRNGKeyArray], Any]) -> Callable[..., Any]:
    """Let a comparison of arrays compare keys as well, by another function.

    >>> of_two_keys(vf.numpy.equal, lambda x, y: x == y)(vf.random.key(0), vf.random.key(1))
    Array(False, dtype=bool)
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return of_keys(*args[:2]) if len(args) > 1 and _is_key(args[0]) and _is_key(args[1]) else function(*args, **kwargs)

    return call


def _replaced(args: tuple[Any, ...], kwargs: dict[str, Any], dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments with another dtype in place of a key's."""
    arguments = [dtype if isinstance(value, KeyType) else value for value in args]
    return arguments, {name: dtype if isinstance(value, KeyType) else value for name, value in kwargs.items()}


def _is_key(value: Any) -> bool:
    return isinstance(value, PRNGKeyArray)


def _mapped(function: Callable[..., Any], leaves: list[Any], structure: Any) -> Any:
    def call_on_words(*words: Any) -> Any:
        following = iter(words)
        args, kwargs = tree.unflatten(structure, [next(following) if _is_key(leaf) else leaf for leaf in leaves])
        return function(*args, **kwargs)

    impl = next(leaf._impl for leaf in leaves if _is_key(leaf))
    return tree.map(lambda words: PRNGKeyArray(words, impl), vmap(call_on_words, -1, -1)(*[leaf._data for leaf in leaves if _is_key(leaf)]))


#: The prefix of names of `jax.lax` here; others are names of `jax.numpy`.
_LAX = "lax_"

_COMPARISONS = {
    "allclose": lambda x, y: (x == y).all(),
    "array_equal": lambda x, y: (x == y).all() if x.shape == y.shape else _numpy.array(False),
    "equal": operator.eq,
    "isclose": operator.eq,
    "not_equal": operator.ne,
}


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """Vectorise a function of scalars, or of the core dimensions in `signature`.

    An array of keys is one of scalars.

    >>> keys = vf.random.split(vf.random.key(0), 3)
    >>> vectorize(lambda key: vf.random.normal(key, (2,)), signature="()->(n)")(keys).shape
    (3, 2)
    """
    plain = _numpy.vectorize(pyfunc, excluded=excluded, signature=signature)

    @functools.wraps(pyfunc)
    def call(*args: Any, **kwargs: Any) -> Any:
        impls = {i: x._impl for i, x in enumerate(args) if isinstance(x, PRNGKeyArray) and i not in excluded}
        if not impls:
            return plain(*args, **kwargs)

        def of_words(*values: Any, **named: Any) -> Any:
            return pyfunc(*[PRNGKeyArray(x, impls[i]) if i in impls else x for i, x in enumerate(values)], **named)

        mapped = [i for i in range(len(args)) if i not in excluded]
        inputs, arrow, outputs = (signature or f"{','.join(['()'] * len(mapped))}->()").partition("->")
        cores = re.findall(r"\(([^)]*)\)", inputs)
        if len(cores) == len(mapped):  # else `vectorize` says what is wrong
            inputs = ",".join(
                f"({','.join(filter(None, (core.strip(), 'words_of_key')))})" if i in impls else f"({core})"
                for i, core in zip(mapped, cores, strict=True)
            )
        words = [x._data if i in impls else x for i, x in enumerate(args)]
        return _numpy.vectorize(of_words, excluded=excluded, signature=inputs + arrow + outputs)(*words, **kwargs)

    return call


def _is_key_of(x: Any, dtype: Any, name: str) -> bool:
    """Return True for keys of that type, and False if neither is one of keys.

    Raises `DTypeError` for keys of another type, and for what is no keys.
    """
    if not (_is_key(x) or isinstance(dtype, KeyType)):
        return False
    if not _is_key(x) or x.dtype != dtype:
        source = x.dtype if _is_key(x) else as_value(x).dtype
        raise DTypeError(f"{name}: cannot convert {source} to {dtype}; use jax.random.key_data and jax.random.wrap_key_data")
    return True


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """Convert `x` to a dtype; keys have their type alone.

    >>> key = vf.random.key(0)
    >>> astype(key, key.dtype) is key
    True

    Raises `DTypeError` for keys and another dtype.
    """
    return x if _is_key_of(x, dtype, "astype") else _numpy.astype(x, dtype, copy=copy, device=device)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """Return the elements as `new_dtype`.

    Python's integers wrap around, and keys have their type alone.

    >>> convert_element_type(1.5, "int32")
    Array(1, dtype=int32)

    Raises `DTypeError` for keys and another dtype.
    """
    return operand if _is_key_of(operand, new_dtype, "convert_element_type") else _convert_element_type(operand, new_dtype)


def reshape(a: Any, shape: Any, order: Any = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Any:
    """Return the elements in another shape.

    A NumPy array stays one, so that its elements stay known where a function is traced.

    >>> reshape(np.arange(4), (2, 2))
    array([[0, 1],
           [2, 3]])
    """
    if isinstance(a, (np.ndarray, np.generic)) and out_sharding is None:
        return a.reshape(shape, order=order)
    return of_keys(_numpy.reshape)(a, shape, order, copy=copy, out_sharding=out_sharding)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name.startswith(_LAX):
        return of_keys(getattr(_lax, name.removeprefix(_LAX)))
    if name in _COMPARISONS:
        return of_two_keys(getattr(_numpy, name), _COMPARISONS[name])
    return of_keys(getattr(_numpy, name))
