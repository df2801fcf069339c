"""Batching rules by the user, `custom_vmap`; `sequential_vmap` maps in a loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData
from volta_fn.core.staging import check_callable, eval_jaxpr, function_name, output_arrays
from volta_fn.core.trace import EVAL, bind, current_trace, run_under
from volta_fn.errors import ArgumentError, TreeError, UnsetRuleError
from volta_fn.primitives.call import call_primitive
from volta_fn.primitives.control_flow.scan import scan
from volta_fn.primitives.data_movement.movement import broadcast, instantiate, to_front
from volta_fn.transforms.custom_call import Programs, RuledFunction, positional_arguments, signature_of
from volta_fn.transforms.linearize import PartialEvalTrace, jvp_flat, jvp_jaxpr, marked, merge, nonzero_marks, split_tangents, with_zeros
from volta_fn.transforms.vmap import vmap_flat


class custom_vmap(RuledFunction):  # JAX's name
    """A function with a batching rule of its own, set with `def_vmap`.

    In forward mode, mapped derivatives are those of the rule, so that it has to be differentiable. Reverse mode needs values without
    tangents, which a rule need not give: gradients are those of the function, and are batched as usual.

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
        self.signature = signature_of(fun)
        self.vmap_rule: Callable[..., Any] | None = None
        self.programs = Programs(fun)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule ``vmap_rule(axis_size, in_batched, *args) -> (out, out_batched)``.

        Arguments that `in_batched` marks have the examples along axis 0, as have results that `out_batched` marks; both are pytrees of
        bools, and `out_batched` may be a prefix. Returns the rule, so it serves as a decorator.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if self.vmap_rule is None:
            raise UnsetRuleError(f"{self.name}: no batching rule is set; give one with {self.name}.def_vmap")
        positional = positional_arguments(self.name, self.signature, args, kwargs)
        if current_trace() is EVAL:
            return self.fun(*positional)
        leaves, in_tree = tree.flatten(positional)
        values = [as_value(x) for x in leaves]
        traced, operands = self.programs.trace(lambda flat: self.fun(*tree.unflatten(in_tree, flat)), values, None)
        if traced.captured:
            raise ArgumentError(f"{self.name} has a custom batching rule, so it cannot close over traced values; pass them as arguments")
        rule = _Rule(self, in_tree, traced.out_tree)
        return tree.unflatten(traced.out_tree, bind(custom_vmap_call_p, *operands, call_jaxpr=traced.jaxpr, rule=rule))


class _Rule:
    """A user's batching rule on flat lists."""

    def __init__(self, function: custom_vmap, in_tree: Any, out_tree: Any) -> None:
        self.function = function
        self.in_tree = in_tree
        self.out_tree = out_tree

    def __repr__(self) -> str:
        return self.function.name  # in texts of programs, which are the same each time

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


class _JvpRule:
    """The derivative of a batching rule, on flat lists.

    Its operands are those of the rule, then the tangents that are `nonzero`. Its results are the rule's, then the tangents of those that
    `out_nonzero` marks.
    """

    def __init__(self, rule: Any, nonzero: Sequence[bool], out_nonzero: Sequence[bool]) -> None:
        self.rule = rule
        self.nonzero = nonzero
        self.out_nonzero = out_nonzero

    def __call__(self, axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[list[Array], list[int | None]]:
        stacked = to_front(args, dims)
        count, marks = len(self.nonzero), [d is not None for d in dims]
        of_primals = marks[:count]
        of_tangents = merge(self.nonzero, marks[count:], marked(of_primals, self.nonzero, False))
        if of_primals == of_tangents:
            return self._run(axis, stacked, of_primals)
        if not any(p and t for p, t in zip(of_primals, of_tangents, strict=True)):
            results = self._run_for_each(axis, stacked, marks)
            if results is not None:
                return results
        either = [p or t for p, t in zip(of_primals, of_tangents, strict=True)]
        stacked_operands = [*either, *marked(either, self.nonzero)]
        missing = [w and not m for w, m in zip(stacked_operands, marks, strict=True)]
        return self._run(axis, [broadcast(x, (axis.size,)) if m else x for x, m in zip(stacked, missing, strict=True)], either)

    def _run(self, axis: AxisData, args: Sequence[Array], stacked: Sequence[bool]) -> tuple[list[Array], list[int | None]]:
        """Differentiate the rule where operands and their tangents are stacked alike."""
        count = len(self.nonzero)
        out_dims: list[int | None] = []

        def call(*primals: Array) -> list[Array]:
            outs, dims = self.rule(axis, primals, [0 if s else None for s in stacked])
            out_dims[:] = dims
            return outs

        outs, tangents = jvp_flat(call, args[:count], with_zeros(args[count:], self.nonzero, args[:count]))
        return [*outs, *map(instantiate, marked(tangents, self.out_nonzero))], [*out_dims, *marked(out_dims, self.out_nonzero)]

    def _run_for_each(self, axis: AxisData, args: Sequence[Array], stacked: Sequence[bool]) -> tuple[list[Array], list[int | None]] | None:
        """Map the derivative of a rule over its examples, without stacked operands.

        The operands whose tangents are not stacked, or the tangents of operands that are not, are stacked for `vmap` alone. Returns None
        if results of the rule are stacked nevertheless.
        """
        of_rule: list[int | None] = []

        def differentiate_example(*flat: Array) -> list[Array]:
            outs, of_rule[:] = self._run(axis, flat, [False] * len(self.nonzero))
            return outs

        outs, dims = vmap_flat(differentiate_example, axis._replace(name=None), args, [0 if s else None for s in stacked])
        return (outs, dims) if of_rule == [None] * len(outs) else None


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any) -> tuple[list[Array], list[Any]]:
    nonzero = nonzero_marks(tangents)
    program, out_nonzero = jvp_jaxpr(call_jaxpr, nonzero, True)
    both = bind(custom_vmap_call_p, *primals, *marked(tangents, nonzero), call_jaxpr=program, rule=_JvpRule(rule, nonzero, out_nonzero))
    outs, out_tangents = split_tangents(both, out_nonzero)
    return list(outs), out_tangents


def _partial_eval(trace: PartialEvalTrace, args: Sequence[Array], params: dict[str, Any]) -> Any:
    """Inline the function's program, since rules do not tell which results are known."""
    return tuple(run_under(trace, eval_jaxpr, params["call_jaxpr"], *args))


custom_vmap_call_p = call_primitive(
    "custom_vmap_call",
    "call_jaxpr",
    jvp=_jvp,
    partial_eval=_partial_eval,
    batch=lambda axis, args, dims, *, call_jaxpr, rule: rule(axis, args, dims),
)


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
            slices = iter(rows)
            values = [next(slices) if m else x for x, m in zip(leaves, marks, strict=True)]
            return None, mapped(*tree.unflatten(structure, values))

        outs = scan(step, None, [x for x, m in zip(leaves, marks, strict=True) if m], length=axis_size)[1]
        return outs, tree.map(lambda _: True, outs)

    mapped.def_vmap(rule)
    return mapped
