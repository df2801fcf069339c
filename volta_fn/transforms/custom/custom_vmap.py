"""`custom_vmap`: batching rules by the user; `sequential_vmap` maps in a loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.flatten import check_callable, function_name, output_arrays
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Primitive
from volta_fn.core.staging import eval_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.errors import ArgumentError, TreeError
from volta_fn.primitives.control_flow.scan import scan
from volta_fn.primitives.elementwise.cast import widened
from volta_fn.transforms.custom.custom_call import Programs
from volta_fn.transforms.jvp import jvp_flat
from volta_fn.transforms.vmap import to_front


class custom_vmap:  # JAX's name
    """A function with a batching rule of its own, set with `def_vmap`.

    Derivatives are those of the function, and are batched as usual.

    >>> import volta_fn as vf
    >>> @vf.custom_batching.custom_vmap
    ... def square(x):
    ...     return x * x
    >>> @square.def_vmap
    ... def _(axis_size, in_batched, x):
    ...     return x ** 2 + 0.5, in_batched[0]
    >>> square(vf.numpy.float32(2.0)), vf.vmap(square)(vf.numpy.arange(3.0))
    (Array(4., dtype=float32), Array([0.5, 1.5, 4.5], dtype=float32))
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        check_callable(fun, "custom_vmap")
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.name = function_name(fun)
        self.vmap_rule: Callable[..., Any] | None = None
        self.programs = Programs(fun)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule ``vmap_rule(axis_size, in_batched, *args) -> (out, out_batched)``.

        Arguments that `in_batched` marks have the examples along axis 0, as have results that `out_batched` marks; both are pytrees of
        bools, and `out_batched` may be a prefix. Returns the rule, so it serves as a decorator.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        if self.vmap_rule is None:
            raise ArgumentError(f"{self.name}: no batching rule is set; give one with {self.name}.def_vmap")
        if current_trace() is EVAL:
            return self.fun(*args)
        leaves, in_tree = tree.flatten(args)
        values = [as_value(x) for x in leaves]
        traced = self.programs.trace(lambda flat: self.fun(*tree.unflatten(in_tree, flat)), values, None)
        if traced.in_full:
            values = widened(values, traced.in_full)
            traced = self.programs.trace(lambda flat: self.fun(*tree.unflatten(in_tree, flat)), values, None)
        if traced.captured:
            raise ArgumentError(f"{self.name} has a custom batching rule, so it cannot close over traced values; pass them as arguments")
        rule = _Rule(self, in_tree, traced.out_tree)
        return tree.unflatten(traced.out_tree, bind(custom_vmap_call_p, *values, call_jaxpr=traced.jaxpr, rule=rule))


class _Rule:
    """A user's batching rule on flat lists."""

    def __init__(self, function: custom_vmap, in_tree: Any, out_tree: Any) -> None:
        self.function = function
        self.in_tree = in_tree
        self.out_tree = out_tree

    def __call__(self, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], list[int | None]]:
        label = f"the batching rule of {self.function.name}"
        stacked = tree.unflatten(self.in_tree, to_front(args, dims))
        rule: Any = self.function.vmap_rule
        pair = rule(axis.size, list(tree.unflatten(self.in_tree, [d is not None for d in dims])), *stacked)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TreeError(f"{label} must return (out, out_batched), got {type(pair).__name__}")
        outs, structure = tree.flatten(pair[0])
        if structure != self.out_tree:
            raise TreeError(f"{label} must return a value of structure {self.out_tree}, like the function itself, got {structure}")
        marks = tree.broadcast_prefix(pair[1], pair[0])
        return output_arrays(outs, rule), [0 if marked else None for marked in marks]


def _abstract(*avals: ShapedArray, call_jaxpr: ClosedJaxpr, rule: _Rule) -> tuple[ShapedArray, ...]:
    return tuple(call_jaxpr.out_avals)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: _Rule) -> tuple[list[Array], list[Any]]:
    return jvp_flat(lambda *xs: eval_jaxpr(call_jaxpr, *xs), primals, tangents)


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr, rule: _Rule) -> Any:
    return rule(axis, args, dims)


custom_vmap_call_p = Primitive("custom_vmap_call", _abstract, jvp=_jvp, batch=_batch, multiple_results=True, views=True)
custom_vmap_call_p.call_param = "call_jaxpr"


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """Make a function that `vmap` maps over one example after another, in a loop.

    >>> import volta_fn as vf
    >>> vf.vmap(vf.custom_batching.sequential_vmap(lambda x: x * 2))(vf.numpy.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    """
    mapped = custom_vmap(f)

    def rule(axis_size: int, in_batched: Any, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        marks = tree.leaves(tuple(in_batched))

        def step(_: None, rows: Any) -> Any:
            given = iter(rows)
            values = [next(given) if m else x for x, m in zip(leaves, marks, strict=True)]
            return None, mapped(*tree.unflatten(structure, values))

        outs = scan(step, None, [x for x, m in zip(leaves, marks, strict=True) if m], length=axis_size)[1]
        return outs, tree.map(lambda _: True, outs)

    mapped.def_vmap(rule)
    return mapped
