"""Functions that move elements, given arrays of random keys.

`numpy` has those of `jax.numpy`, `lax` those of `jax.lax`. The words of a key lie along a last dimension of the data, and all move alike:
`of_keys` maps such a function over them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.errors import ArgumentTypeError, DTypeError
from volta_fn.primitives.data_movement.movement import broadcast_in_dim
from volta_fn.random.keys import KeyType, PRNGKeyArray, wrap_key_data
from volta_fn.transforms.vmap import vmap


def of_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that moves elements of arrays move keys as well.

    >>> import volta_fn as vf
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

    >>> import volta_fn as vf
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
