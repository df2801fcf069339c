"""Calls of jitted functions that use mutable references; loaded on use.

A program takes the references' values as further arguments, and returns the last ones as further results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.refs import Ref, RefArguments, bound, check_no_refs, positions_of_refs, read_all, with_refs_at, write_all
from volta_fn.core.staging import function_name, wraps
from volta_fn.jit.arguments import Statics


class ImpureCalls:
    """A jitted function that closes over `refs`, or gets references as arguments."""

    def __init__(self, fun: Callable[..., Any], statics: Statics, refs: Sequence[Ref], jitted: Callable[..., Any]) -> None:
        self.name = function_name(fun)
        self.refs = list(refs)
        self.statics = statics
        self.jitted = jitted
        self.fun = fun
        self.closing_over = jitted(self._with_values(), statics) if refs else None
        #: Functions of arguments with values in place of references, by where these are.
        self.by_positions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.closing_over is not None:
            result, values = self.closing_over(*args, **kwargs, _ref_values=read_all(self.refs))
            write_all(self.refs, values)
            return result
        leaves, structure = tree.flatten((args, kwargs))
        positions = tuple(positions_of_refs(leaves))
        key = structure, positions
        if key not in self.by_positions:
            self.by_positions[key] = self.jitted(self._at(positions) if positions else self.fun, self.statics)
        function = self.by_positions[key]
        if not positions:
            return function(*args, **kwargs)

        def run(plain: list[Any]) -> Any:
            given, named = tree.unflatten(structure, plain)
            return function(*given, **named)

        return RefArguments(leaves, positions, self.name).run(run)

    def _with_values(self) -> Callable[..., Any]:
        fun, refs = self.fun, self.refs

        @wraps(fun)
        def run(*args: Any, _ref_values: Sequence[Any], **kwargs: Any) -> Any:
            with bound(refs, _ref_values):
                result = fun(*args, **kwargs)
                check_no_refs(result, self.name)
                return result, read_all(refs)

        return run

    def _at(self, positions: Sequence[int]) -> Callable[..., Any]:
        fun = self.fun

        @wraps(fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree.flatten((args, kwargs))
            inner, own = with_refs_at(positions, leaves)
            given, named = tree.unflatten(structure, inner)
            result = fun(*given, **named)
            check_no_refs(result, self.name)
            return result, read_all(own)

        return run
