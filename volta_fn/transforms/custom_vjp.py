"""`custom_vjp`: a function whose reverse derivative the user gives, as a forward pass that saves residuals and a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from volta_fn import dtypes, tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.errors import GradientError, TreeError
from volta_fn.primitives.joining import instantiate
from volta_fn.primitives.movement import moveaxis
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.transforms.custom_call import Arguments, CustomCall, Rule, TracedCall, as_rate, checked_outputs
from volta_fn.transforms.subprograms import chosen
from volta_fn.transforms.vmap import batch_jaxpr, stack_at, vmap_flat

#: ``backward(residuals, cotangents)`` gives a cotangent (or a `Zero`) for each operand.
Backward = Callable[[Sequence[Array], Sequence[Any]], list[Any]]


class custom_vjp:  # JAX's name
    """A function with a reverse-mode rule of its own, set with `defvjp`. Forward mode cannot pass it.

    Args:
        fun: the function.
        nondiff_argnums: positional arguments that are not differentiated (they may be anything, such as functions); `bwd` gets them
            first.

    >>> import volta_fn as vf
    >>> @vf.custom_vjp
    ... def clip_gradient(x):
    ...     return x
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, g: (vf.lax.clamp(-1.0, g, 1.0),))
    >>> vf.grad(lambda x: 100.0 * clip_gradient(x))(3.0)
    Array(1., dtype=float32, weak_type=True)
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.call = CustomCall(fun, nondiff_argnums, nondiff_argnames)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set ``fwd(*args) -> (out, residuals)`` and ``bwd(*nondiff_args, residuals, cotangent) -> tuple``.

        `bwd` returns one cotangent per differentiable argument; None stands for zeros, in place of an argument or of a part of one.
        """
        self.fwd, self.bwd = fwd, bwd

    def __reduce__(self) -> str:
        return getattr(self, "__qualname__", self.call.name)  # as functions: pickled by name, copied as themselves

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise GradientError(f"{self.call.name}: no derivative rule is set; give one with {self.call.name}.defvjp(fwd, bwd)")
        if current_trace() is EVAL:
            return self.fun(*args, **kwargs)
        return self.call.bind(custom_vjp_call_p, functools.partial(VjpRule, self), args, kwargs)


class VjpRule(Rule):
    """A pair of rules, forward and backward."""

    def __init__(self, function: custom_vjp, arguments: Arguments, in_tree: Any, traced: TracedCall) -> None:
        super().__init__(arguments, in_tree, traced)
        self.function = function

    def forward(self, primals: Sequence[Array]) -> tuple[list[Array], list[Array], Backward]:
        """The outputs, the residuals, and what turns cotangents into the operands' cotangents."""
        what = f"the forward rule of {self.function.call.name}"
        fwd: Any = self.function.fwd
        count = len(self.arguments.traced)
        traced, values = primals[:count], primals[count:]
        pair = fwd(*self.arguments.merge(traced, tree.unflatten(self.in_tree, values)))
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TreeError(f"{what} must return (out, residuals), got {type(pair).__name__}")
        outs = checked_outputs(pair[0], self.out_tree, self.out_avals, what)
        residuals, residual_tree = tree.flatten(pair[1])
        is_array = [isinstance(r, Array) or hasattr(r, "dtype") or isinstance(r, (bool, int, float, complex)) for r in residuals]
        others = chosen(residuals, is_array, False)
        avals = [v.aval for v in values]

        def backward(saved: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
            arrays, rest = iter(saved[count:]), iter(others)
            whole = tree.unflatten(residual_tree, [next(arrays) if a else next(rest) for a in is_array])
            not_differentiated = [Zero(t.aval.at_least_vspace()) for t in saved[:count]]
            return [*not_differentiated, *self.backward(self.arguments.fixed(saved[:count]), whole, cotangents, avals)]

        return outs, [*traced, *map(as_value, chosen(residuals, is_array))], backward

    def backward(self, fixed: Sequence[Any], residuals: Any, cotangents: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
        """The operands' cotangents by the user's backward rule, checked."""
        name = self.function.call.name
        bwd: Any = self.function.bwd
        result = bwd(*fixed, residuals, tree.unflatten(self.out_tree, [instantiate(c) for c in cotangents]))
        args = tree.unflatten(self.in_tree, list(range(len(avals))))
        if not isinstance(result, (tuple, list)) or len(result) != len(args):
            given = f"{len(result)} of them" if isinstance(result, (tuple, list)) else type(result).__name__
            raise TreeError(f"the backward rule of {name} must return a tuple of {len(args)} cotangents, one per argument, got {given}")
        found: list[Any] = []
        for position, (part, ct) in enumerate(zip(args, result, strict=True)):
            leaves = _leaves_like(part, ct)
            if leaves is None:
                raise TreeError(
                    f"the backward rule of {name} must return a cotangent of structure {tree.structure(part)} for argument {position}, "
                    f"got {tree.structure(ct)}"
                )
            found += leaves
        what = f"the backward rule of {name} returned a cotangent"
        return [as_rate(ct, aval, what, "an argument") for ct, aval in zip(found, avals, strict=True)]


def _leaves_like(part: Any, cotangent: Any) -> list[Any] | None:
    """A cotangent's leaves, one for each leaf of an argument, where None may stand for a whole part of it; None if it does not fit."""
    leaves, structure = tree.flatten(cotangent, is_leaf=lambda x: x is None)
    try:
        parts = tree.flatten_up_to(structure, part)
    except TreeError:
        return None
    found: list[Any] = []
    for leaf, below in zip(leaves, map(tree.structure, parts), strict=True):
        if leaf is not None and below != _LEAF:
            return None
        found += [leaf] * below.num_leaves
    return found


_LEAF = tree.structure(0)


class _BatchedVjpRule:
    """A rule on operands stacked along their first dimension where `stacked`; its outputs and residuals are all stacked."""

    def __init__(self, rule: Any, axis: AxisData, stacked: Sequence[bool]) -> None:
        self.rule = rule
        self.axis = axis
        self.stacked = list(stacked)

    def forward(self, primals: Sequence[Array]) -> tuple[list[Array], list[Array], Backward]:
        """The rule's forward pass for all examples."""
        counts: list[int] = []
        inner: list[Backward] = []

        def one(*values: Array) -> list[Array]:
            outs, residuals, backward = self.rule.forward(values)
            counts[:] = [len(outs)]
            inner[:] = [backward]
            return [*outs, *residuals]

        results, dims = vmap_flat(one, self.axis, primals, [0 if s else None for s in self.stacked])
        stacked = [stack_at(r, d, 0, self.axis.size) for r, d in zip(results, dims, strict=True)]
        (count,), (backward,) = counts, inner
        return stacked[:count], stacked[count:], functools.partial(self._backward, backward)

    def _backward(self, backward: Backward, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        found = _mapped(backward, self.axis, residuals, cotangents)
        return [self._for_operand(ct, is_stacked) for ct, is_stacked in zip(found, self.stacked, strict=True)]

    def _for_operand(self, ct: Any, is_stacked: bool) -> Any:
        """An operand that is the same for all examples gets the sum of their cotangents."""
        if is_stacked:
            return ct
        return Zero(ct.aval.update(shape=ct.aval.shape[1:])) if type(ct) is Zero else reduce_sum(ct, (0,))


def _mapped(backward: Backward, axis: AxisData, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
    """A backward pass for all examples of stacked residuals and cotangents; what it gives is stacked."""
    zeros: dict[int, Zero] = {}
    count = len(residuals)

    def one(*values: Array) -> list[Array]:
        results = backward(values[:count], values[count:])
        zeros.update((i, r) for i, r in enumerate(results) if type(r) is Zero)
        return [r for r in results if type(r) is not Zero]

    given = [instantiate(c) for c in cotangents]
    results, dims = vmap_flat(one, axis, [*residuals, *given], [0] * (count + len(given)))
    stacked = iter([stack_at(r, d, 0, axis.size) for r, d in zip(results, dims, strict=True)])
    total = len(zeros) + len(results)
    return [Zero(zeros[i].aval.update(shape=(axis.size, *zeros[i].aval.shape))) if i in zeros else next(stacked) for i in range(total)]


def _abstract(*avals: ShapedArray, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int) -> tuple[ShapedArray, ...]:
    return tuple(call_jaxpr.out_avals)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[list[Array], list[Any]]:
    if any(type(t) is not Zero for t in tangents[:num_captured]):
        raise GradientError(
            "a function with a custom_vjp rule closes over a value that is being differentiated, for which the rule has no cotangent. "
            "Pass that value as an argument."
        )
    outs, residuals, backward = rule.forward(primals[num_captured:])
    live = tuple([t.aval.dtype != dtypes.float0 if type(t) is Zero else True for t in tangents[num_captured:]])
    given = [instantiate(t) for t, alive in zip(tangents[num_captured:], live, strict=True) if alive]
    avals = tuple([o.aval.at_least_vspace() for o in outs])
    real = tuple([a for a in avals if a.dtype != dtypes.float0])
    rates = iter(bind(custom_tangent_p, *residuals, *given, backward=_WithZeros(backward, avals), live=live, out_avals=real))
    return outs, [Zero(a) if a.dtype == dtypes.float0 else next(rates) for a in avals]


class _WithZeros:
    """A backward pass that takes cotangents of the outputs with floating dtype only."""

    def __init__(self, backward: Backward, avals: Sequence[ShapedArray]) -> None:
        self.backward = backward
        self.avals = avals

    def __call__(self, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        given = iter(cotangents)
        return self.backward(residuals, [Zero(a) if a.dtype == dtypes.float0 else next(given) for a in self.avals])


def _batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[Sequence[Array], list[int]]:
    stacked = [d is not None for d in dims]
    batched, _ = batch_jaxpr(call_jaxpr, axis, stacked, [True] * len(call_jaxpr.out_avals))
    front = [a if d is None else moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    new_rule = _BatchedVjpRule(rule, axis, stacked[num_captured:])
    outs = bind(custom_vjp_call_p, *front, call_jaxpr=batched, rule=new_rule, num_captured=num_captured)
    return outs, [0] * len(outs)


custom_vjp_call_p = Primitive("custom_vjp_call", _abstract, jvp=_jvp, batch=_batch, multiple_results=True, views=True)
custom_vjp_call_p.call_param = "call_jaxpr"

# The linear map from tangents to tangents that is known by its transpose alone.


def _tangent_abstract(*avals: ShapedArray, backward: Backward, live: tuple[bool, ...], out_avals: tuple[ShapedArray, ...]) -> Any:
    return out_avals


def _no_forward_mode(*args: Any, **params: Any) -> NoReturn:
    raise GradientError(
        "forward-mode differentiation (jvp, jacfwd, linearize) reached a function that has a custom_vjp rule, which gives only "
        "its reverse derivative. Use reverse mode (grad, vjp, jacrev), or define the function with custom_jvp."
    )


def _tangent_transpose(
    cotangents: Sequence[Any], *args: Any, backward: Backward, live: tuple[bool, ...], out_avals: tuple[ShapedArray, ...]
) -> list[Any]:
    count = len(args) - sum(live)
    if any(type(a) is Linear for a in args[:count]):
        _no_forward_mode()
    results = backward(args[:count], [instantiate(c) for c in cotangents])
    return [None] * count + [r for r, alive in zip(results, live, strict=True) if alive]


def _tangent_batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    backward: Backward,
    live: tuple[bool, ...],
    out_avals: tuple[ShapedArray, ...],
) -> tuple[Sequence[Array], list[int]]:
    stacked = [stack_at(a, d, 0, axis.size) for a, d in zip(args, dims, strict=True)]

    def batched(residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        return _mapped(backward, axis, residuals, cotangents)

    out = tuple([a.update(shape=(axis.size, *a.shape)) for a in out_avals])
    outs = bind(custom_tangent_p, *stacked, backward=batched, live=live, out_avals=out)
    return outs, [0] * len(outs)


custom_tangent_p = Primitive(
    "custom_tangent",
    _tangent_abstract,
    evaluate=_no_forward_mode,
    jvp=_no_forward_mode,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
    multiple_results=True,
)
