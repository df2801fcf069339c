"""`custom_jvp`: forward derivatives by the user; reverse mode follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.array import Array, aval_of
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Primitive, Zero
from volta_fn.errors import ArgumentError, TreeError, UnsetRuleError
from volta_fn.transforms.custom.custom_call import (
    CustomFunction,
    Rule,
    as_tangent,
    batch_custom_call,
    call_types,
    check_captured,
    checked_outputs,
)
from volta_fn.transforms.forward import public_tangent
from volta_fn.transforms.marks import is_linear, is_nonzero, marked, split_tangents, with_zeros
from volta_fn.transforms.transpose import backward_pass
from volta_fn.transforms.vmap import vmap_stacked


class custom_jvp(CustomFunction):  # JAX's name
    """A function with a custom derivative rule, set with `defjvp` or `defjvps`.

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
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule ``jvp(*nondiff_args, primals, tangents) -> (out, out_tangent)``.

        Returns the rule, so it serves as a decorator. With `symbolic_zeros`, the tangents that are zero are given as `Zero` objects.
        """
        self.jvp = jvp
        self.symbolic_zeros = symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set one rule ``(tangent, out, *primals) -> out_tangent`` per argument, or None.

        The tangents of all rules are added up; None contributes nothing.
        """
        if self.nondiff:
            raise ArgumentError(f"{self.name}: defjvps does not go with nondiff_argnums; give one rule with defjvp")

        def jvp(primals: Any, tangents: Any) -> Any:
            if len(primals) != len(jvps):
                raise ArgumentError(f"{self.name} has {len(primals)} arguments, but defjvps got {len(jvps)} rules")
            out = self(*primals)
            terms = [rule(t, out, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = terms[0] if terms else tree.map(lambda x: Zero(aval_of(x).at_least_vspace()), out)
            for term in terms[1:]:
                total = tree.map(lambda a, b: a + b, total, term)
            return out, total

        self.defjvp(jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise UnsetRuleError(f"{self.name}: no derivative rule is set; give one with {self.name}.defjvp")
        return self.call(custom_jvp_call_p, JvpRule, args, kwargs)


class JvpRule(Rule):
    """A derivative rule; tangents of fixed arguments are ignored."""

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        count = len(self.arguments.traced)
        fixed = self.arguments.fixed(primals[:count])
        given = tangents[count:] if self.function.symbolic_zeros else [public_tangent(t) for t in tangents[count:]]
        rule: Any = self.function.jvp
        pair = rule(*fixed, tree.unflatten(self.in_tree, primals[count:]), tree.unflatten(self.in_tree, given))
        label = f"the derivative rule of {self.function.name}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TreeError(f"{label} must return (out, out_tangent), got {type(pair).__name__}")
        values = checked_outputs(pair[0], self.out_tree, self.out_avals, label)
        out_tangents, structure = tree.flatten(pair[1])
        if structure != self.out_tree:
            raise TreeError(f"{label} must return a tangent of structure {self.out_tree}, like the function's value, got {structure}")
        name = f"{label} returned a tangent"
        return values, [as_tangent(t, v.aval, name, "a result") for t, v in zip(out_tangents, values, strict=True)]


class _BatchedJvpRule:
    """A rule on operands stacked along dimension 0 where `stacked`, like all results."""

    def __init__(self, rule: Any, axis: AxisData, stacked: Sequence[bool]) -> None:
        self.rule = rule
        self.axis = axis
        self.stacked = list(stacked)

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        dims = [0 if s else None for s in self.stacked]
        nonzero = is_nonzero(tangents)
        out_nonzero: list[bool] = []

        def one(*flat: Array) -> list[Array]:
            values = flat[: len(dims)]
            outs, out_tangents = self.rule(values, with_zeros(flat[len(dims) :], nonzero, values))
            out_nonzero[:] = is_nonzero(out_tangents)
            return [*outs, *marked(out_tangents, out_nonzero)]

        flat = vmap_stacked(one, self.axis, [*primals, *marked(tangents, nonzero)], [*dims, *marked(dims, nonzero)])
        outs, out_tangents = split_tangents(flat, out_nonzero)
        return list(outs), out_tangents


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[list[Array], list[Any]]:
    check_captured(tangents, num_captured, "custom_jvp")
    return rule(primals[num_captured:], tangents[num_captured:])


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Sequence[Array], list[int]]:
    return batch_custom_call(custom_jvp_call_p, _BatchedJvpRule, axis, args, dims, params)


def _transpose(cotangents: Sequence[Any], *args: Any, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int) -> list[Any]:
    """Transpose the program of a linear function, which a rule applied to tangents."""
    return backward_pass(call_jaxpr, is_linear(args), args, cotangents)


custom_jvp_call_p = Primitive(
    "custom_jvp_call", call_types, jvp=_jvp, transpose=_transpose, batch=_batch, multiple_results=True, views=True
)
custom_jvp_call_p.call_param = "call_jaxpr"
