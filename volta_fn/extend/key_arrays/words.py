"""Maps functions over the words of random keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn import tree
from volta_fn.errors import ArgumentTypeError, DTypeError
from volta_fn.random.keys import PRNGKeyArray
from volta_fn.transforms.vmap import vmap


def of_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that moves elements of arrays move keys as well.

    >>> import volta_fn as vf
    >>> of_keys(vf.numpy.stack)([vf.random.key(0), vf.random.key(1)]).shape
    (2,)
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ArgumentTypeError, DTypeError):
            leaves, structure = tree.flatten((args, kwargs), is_leaf=_is_key)
            if not any(map(_is_key, leaves)):
                raise
        return _mapped(function, leaves, structure)

    return call


def _is_key(value: Any) -> bool:
    return isinstance(value, PRNGKeyArray)


def _mapped(function: Callable[..., Any], leaves: list[Any], structure: Any) -> Any:
    def one(*words: Any) -> Any:
        following = iter(words)
        args, kwargs = tree.unflatten(structure, [next(following) if _is_key(leaf) else leaf for leaf in leaves])
        return function(*args, **kwargs)

    return tree.map(PRNGKeyArray, vmap(one, -1, -1)(*[leaf._data for leaf in leaves if _is_key(leaf)]))
