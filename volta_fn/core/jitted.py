"""Transforms of jitted functions are jitted themselves.

Called eagerly, `vmap(jit(f))` is thus one program, like `jit(vmap(f))`, and another `vmap(jit(f))` finds it again. Programs that rules
derive of a jitted function, as for ``grad(lambda x: f(x) + 1)``, are compiled by `jit.eager`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from volta_fn import tree


class JittedFunction:
    """What transforms know of a jitted function."""

    __slots__ = ()

    def transformed(self, key: Hashable, function: Callable[..., Any], same_arguments: bool) -> Callable[..., Any]:
        """Return a transform of this function, jitted.

        The first `function` that is given with a `key` is used for all. A transform of other arguments stays as it is if some are static.
        """
        raise NotImplementedError


def jitted_like(fun: Callable[..., Any], function: Callable[..., Any], *settings: Any, same_arguments: bool = True) -> Callable[..., Any]:
    """Return `function`, a transform of `fun` with these settings; jitted if `fun` is.

    `same_arguments` tells whether it takes those of `fun`, so that the same ones are static.
    """
    if not isinstance(fun, JittedFunction):
        return function
    leaves, structure = tree.flatten(settings, is_leaf=lambda x: x is None)
    try:
        key = (structure, tuple([(type(x), x) for x in leaves]))
        hash(key)
    except TypeError:  # a setting that is no name and no number: the transform will say so
        return function
    return fun.transformed(key, function, same_arguments)
