"""`custom_jvp`: a function whose forward derivative the user gives. Reverse mode follows by linearizing and transposing that rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.errors import ArgumentError, GradientError, TreeError
from volta_fn.primitives.movement import moveaxis
from volta_fn.transforms.custom_call import Arguments, CustomCall, Rule, TracedCall, as_rate, checked_outputs
from volta_fn.transforms.grad import public_tangent
from volta_fn.transforms.transpose import backward_pass
from volta_fn.transforms.vmap import batch_jaxpr, stack_at, vmap_flat


class custom_jvp:  # JAX's name
    """A function with a derivative rule of its own, set with `defjvp` or `defjvps`.

    Args:
        fun: the function.
        nondiff_argnums: positional arguments that are not differentiated (they may be anything, such as functions); the rule gets
            them first.

    >>> import volta_fn as vf
    >>> @vf.custom_jvp
    ... def log1pexp(x):
    ...     return vf.numpy.log(1.0 + vf.numpy.exp(x))
    >>> @log1pexp.defjvp
    ... def _(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), t * (1.0 - 1.0 / (1.0 + vf.numpy.exp(x)))
    >>> vf.grad(log1pexp)(100.0)
    Array(1., dtype=float32, weak_type=True)
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.call = CustomCall(fun, nondiff_argnums, nondiff_argnames)
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule ``jvp(*nondiff_args, primals, tangents) -> (out, out_tangent)``; returns it, so it serves as a decorator.

        With `symbolic_zeros`, tangents that are zero by construction are given as `Zero` objects.
        """
        self.jvp = jvp
        self.symbolic_zeros = symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule ``(tangent, out, *primals) -> out_tangent`` per argument (None: no contribution); the tangents are added up."""

        if self.call.nondiff:
            raise ArgumentError(f"{self.call.name}: defjvps does not go with nondiff_argnums; give one rule with defjvp")

        def jvp(primals: Any, tangents: Any) -> Any:
            if len(primals) != len(jvps):
                raise ArgumentError(f"{self.call.name} has {len(primals)} arguments, but defjvps got {len(jvps)} rules")
            out = self(*primals)
            terms = [rule(t, out, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = terms[0] if terms else tree.map(lambda x: Zero(aval_of(x).at_least_vspace()), out)
            for term in terms[1:]:
                total = tree.map(lambda a, b: a + b, total, term)
            return out, total

        self.defjvp(jvp)

    def __reduce__(self) -> str:
        return getattr(self, "__qualname__", self.call.name)  # as functions: pickled by name, copied as themselves

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise GradientError(f"{self.call.name}: no derivative rule is set; give one with {self.call.name}.defjvp")
        if current_trace() is EVAL:
            return self.fun(*args, **kwargs)
        return self.call.bind(custom_jvp_call_p, functools.partial(JvpRule, self), args, kwargs)


class JvpRule(Rule):
    """A derivative rule; tangents of what is not differentiated are ignored."""

    def __init__(self, function: custom_jvp, arguments: Arguments, in_tree: Any, traced: TracedCall) -> None:
        super().__init__(arguments, in_tree, traced)
        self.function = function

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        count = len(self.arguments.traced)
        fixed = self.arguments.fixed(primals[:count])
        given = tangents[count:] if self.function.symbolic_zeros else [public_tangent(t) for t in tangents[count:]]
        rule: Any = self.function.jvp
        pair = rule(*fixed, tree.unflatten(self.in_tree, primals[count:]), tree.unflatten(self.in_tree, given))
        what = f"the derivative rule of {self.function.call.name}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TreeError(f"{what} must return (out, out_tangent), got {type(pair).__name__}")
        values = checked_outputs(pair[0], self.out_tree, self.out_avals, what)
        rates, structure = tree.flatten(pair[1])
        if structure != self.out_tree:
            raise TreeError(f"{what} must return a tangent of structure {self.out_tree}, like the function's value, got {structure}")
        return values, [as_rate(r, v.aval, f"{what} returned a tangent", "a result") for r, v in zip(rates, values, strict=True)]


class _BatchedJvpRule:
    """A rule on operands stacked along their first dimension where `stacked`; its results are all stacked."""

    def __init__(self, rule: Any, axis: AxisData, stacked: Sequence[bool]) -> None:
        self.rule = rule
        self.axis = axis
        self.stacked = list(stacked)

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        dims = [0 if s else None for s in self.stacked]
        live = [type(t) is not Zero for t in tangents]
        out_live: list[bool] = []

        def one(*flat: Array) -> list[Array]:
            values, given = flat[: len(dims)], iter(flat[len(dims) :])
            rates = [next(given) if alive else Zero(v.aval.at_least_vspace()) for alive, v in zip(live, values, strict=True)]
            outs, out_rates = self.rule(values, rates)
            out_live[:] = [type(r) is not Zero for r in out_rates]
            return [*outs, *[r for r in out_rates if type(r) is not Zero]]

        given = [t for t, alive in zip(tangents, live, strict=True) if alive]
        given_dims = [d for d, alive in zip(dims, live, strict=True) if alive]
        results, out_dims = vmap_flat(one, self.axis, [*primals, *given], [*dims, *given_dims])
        stacked = [stack_at(r, d, 0, self.axis.size) for r, d in zip(results, out_dims, strict=True)]
        outs, rates = stacked[: len(out_live)], iter(stacked[len(out_live) :])
        return outs, [next(rates) if alive else Zero(o.aval.at_least_vspace()) for alive, o in zip(out_live, outs, strict=True)]


def _abstract(*avals: ShapedArray, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int) -> tuple[ShapedArray, ...]:
    return tuple(call_jaxpr.out_avals)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[list[Array], list[Any]]:
    if any(type(t) is not Zero for t in tangents[:num_captured]):
        raise GradientError(
            "a function with a custom_jvp rule closes over a value that is being differentiated, for which the rule has no derivative. "
            "Pass that value as an argument."
        )
    return rule(primals[num_captured:], tangents[num_captured:])


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[Sequence[Array], list[int]]:
    stacked = [d is not None for d in dims]
    batched, _ = batch_jaxpr(call_jaxpr, axis, stacked, [True] * len(call_jaxpr.out_avals))
    front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    new_rule = _BatchedJvpRule(rule, axis, stacked[num_captured:])
    outs = bind(custom_jvp_call_p, *front, call_jaxpr=batched, rule=new_rule, num_captured=num_captured)
    return outs, [0] * len(outs)


def _transpose(cotangents: Sequence[Any], *args: Any, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int) -> list[Any]:
    """A function that is linear, and applied to tangents by the rule of another one: the rule gave its derivative, its program the rest."""
    return backward_pass(call_jaxpr, [type(a) is Linear for a in args], args, cotangents)


custom_jvp_call_p = Primitive("custom_jvp_call", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch, multiple_results=True, views=True)
custom_jvp_call_p.call_param = "call_jaxpr"
