"""A partial application that is a pytree, so that it can pass through transforms with its arguments as leaves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from volta_fn.tree.registry import register_node


class Partial(functools.partial):
    """`functools.partial` as a pytree: the bound arguments are children, the function is static.

    >>> from volta_fn import tree
    >>> add = Partial(lambda x, y: x + y, 1)
    >>> tree.map(lambda leaf: 10 * leaf, add)(2)
    12
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Partial:
        """Bind arguments; a plain `functools.partial` as `func` stays whole, its own arguments static."""
        if isinstance(func, functools.partial) and not isinstance(func, Partial):
            func = _Whole(func)
        return super().__new__(cls, func, *args, **keywords)


class _Whole:
    """Hides a partial from functools, which would merge its arguments into those of a partial around it."""

    def __init__(self, function: functools.partial[Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Whole) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)


register_node(
    Partial,
    lambda partial: ((partial.args, partial.keywords), partial.func),
    lambda func, bound: Partial(func, *bound[0], **bound[1]),
)
