"""What functions with custom derivative rules share: telling differentiable arguments from others, and tracing the function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.core.axes import axis_environment
from volta_fn.core.flatten import function_name, output_arrays
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.errors import ArgumentError

_CACHE_LIMIT = 512


class Arguments(NamedTuple):
    """One call's positional arguments, told apart."""

    #: Positions and values of the arguments that are not differentiated.
    fixed: tuple[tuple[int, Any], ...]
    differentiable: tuple[Any, ...]

    @property
    def fixed_values(self) -> list[Any]:
        """The values alone."""
        return [v for _, v in self.fixed]

    def merge(self, differentiable: Sequence[Any]) -> list[Any]:
        """All positional arguments, with others in place of the differentiable ones."""
        rest = iter(differentiable)
        fixed = dict(self.fixed)
        return [fixed[i] if i in fixed else next(rest) for i in range(len(fixed) + len(self.differentiable))]


class TracedCall(NamedTuple):
    """The function's program for one call, with the tracers that it closes over as leading inputs."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    captured: list[Array]


class CustomCall:
    """The function behind a custom rule."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int], nondiff_argnames: Sequence[str]) -> None:
        self.function = function
        self.name = function_name(function)
        try:
            self.signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self.signature = None
        names = list(self.signature.parameters) if self.signature else []
        unknown = [n for n in nondiff_argnames if n not in names]
        if unknown:
            raise ArgumentError(f"{self.name} has no arguments {unknown}, which nondiff_argnames names")
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        self.nondiff = frozenset([*numbers, *[names.index(n) for n in nondiff_argnames]])
        self._traced: dict[Any, TracedCall] = {}

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults included, as rules see them."""
        if self.signature is None:
            return args
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentError(f"{self.name} has a custom derivative rule, so its arguments {sorted(bound.kwargs)} cannot be keyword-only")
        return bound.args

    def trace(self, arguments: Arguments, in_tree: Any, values: Sequence[Array]) -> TracedCall:
        """The function's program for these arguments; kept for the next call with the same types if it closes over no tracer."""
        avals = tuple([v.aval for v in values])
        key = _hashable((in_tree, avals, arguments.fixed, axis_environment()))
        found = self._traced.get(key) if key is not None else None
        if found is not None:
            return found
        out_tree: Any = None

        def flat(*leaves: Array) -> list[Array]:
            nonlocal out_tree
            outs, out_tree = tree.flatten(self.function(*arguments.merge(tree.unflatten(in_tree, leaves))))
            return output_arrays(outs, self.function)

        closed = trace_to_jaxpr(flat, avals, self.name)
        program, captured = hoist_tracers(closed)
        traced = TracedCall(program, out_tree, captured)
        if key is not None and not captured:
            if len(self._traced) >= _CACHE_LIMIT:
                self._traced.clear()
            self._traced[key] = traced
        return traced


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return None
    return key


def split_arguments(call: CustomCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Tell a call's arguments apart."""
    positional = call.positional(args, kwargs)
    count = len(positional)
    numbers = {n % count for n in call.nondiff} if count else set()
    fixed = tuple([(i, positional[i]) for i in sorted(numbers)])
    return Arguments(fixed, tuple([a for i, a in enumerate(positional) if i not in numbers]))
