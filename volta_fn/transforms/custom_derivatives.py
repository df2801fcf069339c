"""Users' derivatives: `custom_jvp`, `custom_vjp` and `custom_gradient`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import AxisData, Primitive, Zero
from volta_fn.core.refs import Ref
from volta_fn.core.staging import FlatFunction, check_callable, eval_jaxpr, function_name, hoist_tracers, trace_to_jaxpr
from volta_fn.core.trace import SUBFUNCTION_CALLS, SubfunctionCall, bind
from volta_fn.errors import ArgumentError, GradientError, ShapeError, TreeError, UnsetRuleError
from volta_fn.primitives.call import call_primitive
from volta_fn.primitives.data_movement.movement import instantiate, stacked_in_front
from volta_fn.primitives.reduction import reduce_sum
from volta_fn.settings import current as settings
from volta_fn.source import is_internal
from volta_fn.transforms.custom_call import CustomFunction, UserRule, as_tangent, batch_custom_call, check_captured, checked_outputs
from volta_fn.transforms.differentiation import (
    backward_pass,
    in_checkpoint,
    linear_marks,
    marked,
    merge,
    nonzero_marks,
    positions_in,
    split_tangents,
    with_zeros,
)
from volta_fn.transforms.grad import derivative_of
from volta_fn.transforms.vmap import vmap_stacked

# `custom_jvp`: users' forward derivatives, from which reverse mode follows.


class custom_jvp(CustomFunction):  # JAX's name
    """A function with a custom derivative rule, set with `defjvp` or `defjvps`.

    Args:
        fun: the function.
        nondiff_argnums: positional arguments that are not differentiated (they may be anything, such as functions); the rule gets
            them first.

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

    #: The rule, and whether its tangents may be symbolic zeros.
    jvp: Callable[..., Any] | None
    symbolic_zeros: bool

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self.jvp, self.symbolic_zeros = None, False

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
            total = terms[0] if terms else tree.map(lambda x: Zero(aval_of(x).tangent_aval()), out)
            for term in terms[1:]:
                total = tree.map(lambda a, b: a + b, total, term)
            return out, total

        self.defjvp(jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise UnsetRuleError(f"{self.name}: no derivative rule is set; give one with {self.name}.defjvp")
        return self.call(custom_jvp_call_p, JvpRule, args, kwargs)


class JvpRule(UserRule):
    """A derivative rule; tangents of fixed arguments are ignored."""

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        count = len(self.arguments.traced)
        fixed = self.arguments.fixed(primals[:count])
        rule_tangents = tangents[count:]
        if not self.function.symbolic_zeros:
            rule_tangents = [derivative_of(t, p.aval) for t, p in zip(rule_tangents, primals[count:], strict=True)]
        rule: Any = self.function.jvp
        rule_primals = self.with_numbers(primals[count:])
        pair = rule(*fixed, tree.unflatten(self.in_tree, rule_primals), tree.unflatten(self.in_tree, rule_tangents))
        label = f"the derivative rule of {self.function.name}"
        values, out_tangents, structure = _parts(self, pair, "out_tangent", label)
        if structure != self.out_tree:
            raise TreeError(f"{label} must return a tangent of structure {self.out_tree}, like the function's value, got {structure}")
        name = f"{label} returned a tangent"
        return values, [as_tangent(t, v.aval, name, "a result") for t, v in zip(out_tangents, values, strict=True)]


def _parts(rule: UserRule, pair: Any, second: str, label: str) -> tuple[list[Array], list[Any], tree.TreeDef]:
    """Return the outputs of a forward rule, and the leaves of what comes with them."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TreeError(f"{label} must return (out, {second}), got {type(pair).__name__}")
    return checked_outputs(pair[0], rule.out_tree, rule.out_avals, label), *tree.flatten(pair[1])


class _BatchedRule:
    """A rule on operands stacked along dimension 0 where `stacked`, like all results."""

    def __init__(self, rule: Any, axis: AxisData, stacked: Sequence[bool]) -> None:
        self.rule, self.axis, self.stacked = rule, axis, list(stacked)
        self.function = rule.function


class _BatchedJvpRule(_BatchedRule):
    """A forward rule of stacked operands."""

    def __call__(self, primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        dims = [0 if s else None for s in self.stacked]
        nonzero = nonzero_marks(tangents)
        out_nonzero: list[bool] = []

        def differentiate_example(*flat: Array) -> list[Array]:
            values = flat[: len(dims)]
            outs, out_tangents = self.rule(values, with_zeros(flat[len(dims) :], nonzero, values))
            out_nonzero[:] = nonzero_marks(out_tangents)
            return [*outs, *marked(out_tangents, out_nonzero)]

        flat = vmap_stacked(differentiate_example, self.axis, [*primals, *marked(tangents, nonzero)], [*dims, *marked(dims, nonzero)])
        outs, out_tangents = split_tangents(flat, out_nonzero)
        return list(outs), out_tangents


def _jvp_custom_jvp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[list[Array], list[Any]]:
    check_captured(tangents, num_captured, "custom_jvp")
    return rule(primals[num_captured:], tangents[num_captured:])


def _transpose_custom_jvp(cotangents: Sequence[Any], *args: Any, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int) -> list[Any]:
    """Transpose the function's program, where operands are linear."""
    # Such a call is in a linear program if the rule of another function applies this one to tangents.
    return backward_pass(call_jaxpr, linear_marks(args), args, cotangents)


custom_jvp_call_p = call_primitive(
    "custom_jvp_call", "call_jaxpr", jvp=_jvp_custom_jvp, transpose=_transpose_custom_jvp, batch=batch_custom_call(_BatchedJvpRule)
)


class Subfunction(NamedTuple):
    """A function of arrays, as interpreters written for JAX call and transform it."""

    call_wrapped: Callable[..., list[Any]]
    debug_info: Any = None


def _process_subfunctions(
    method: Callable[..., list[Any]], primitive: Primitive, args: Sequence[Array], params: dict[str, Any]
) -> Sequence[Any]:
    """Pass a call's function, and its rule of primals and tangents, to a method."""
    program, rule, captured = params["call_jaxpr"], params["rule"], params["num_captured"]

    def jvp(*values: Any) -> list[Any]:
        outs, out_tangents = rule(values[captured : len(args)], values[len(args) + captured :])
        return [*outs, *out_tangents]

    functions = Subfunction(lambda *xs: eval_jaxpr(program, *xs)), Subfunction(jvp)
    return method(primitive, *functions, args, symbolic_zeros=rule.function.symbolic_zeros)


def _bind_subfunctions(*args: Any, subfuns: tuple[Any, Any], symbolic_zeros: bool) -> list[Any]:
    """Call a function with a rule, both of which an interpreter has transformed."""
    function = custom_jvp(lambda *xs: list(subfuns[0].call_wrapped(*xs)))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = subfuns[1].call_wrapped(*primals, *tangents)
        return list(outs[: len(outs) // 2]), list(outs[len(outs) // 2 :])

    function.defjvp(jvp, symbolic_zeros)
    return function(*args)


SUBFUNCTION_CALLS["custom_jvp_call"] = SubfunctionCall("process_custom_jvp_call", _process_subfunctions, _bind_subfunctions)


# `custom_vjp`: users' reverse derivatives, as a forward and a backward pass.

#: ``backward(residuals, cotangents)`` gives a cotangent (or a `Zero`) for each operand.
BackwardRule = Callable[[Sequence[Array], Sequence[Any]], list[Any]]


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """Return the zero tangents of a pytree of values.

    They have the values' dtypes, or float0 for integers. With `symbolic_zeros` they are `Zero`, which has no elements. Raises
    `ArgumentTypeError` for leaves that are no arrays.

    >>> zero_from_primal({"w": 3.0})
    {'w': Array(0., dtype=float32)}
    """

    def zero_of(value: Any) -> Any:
        zero = Zero(as_value(value).aval.tangent_aval())
        return zero if symbolic_zeros else instantiate(zero)

    return tree.map(zero_of, val)


class custom_vjp(CustomFunction):  # JAX's name
    """A function with a custom reverse-mode rule, set with `defvjp`.

    Forward mode raises `GradientError`.

    Args:
        fun: the function.
        nondiff_argnums: positional arguments that are not differentiated (they may be anything, such as functions); `bwd` gets them
            first.

    >>> @vf.custom_vjp
    ... def clip_gradient(x):
    ...     return x
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, g: (vf.lax.clamp(-1.0, g, 1.0),))
    >>> vf.grad(lambda x: 100.0 * clip_gradient(x))(3.0)
    Array(1., dtype=float32, weak_type=True)
    """

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Sequence[str] = ()) -> None:
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.symbolic_zeros = self.optimize_remat = False

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False, optimize_remat: bool = False) -> None:
        """Set the rules ``fwd(*args)`` and ``bwd(*nondiff_args, residuals, cotangent)``.

        `fwd` returns ``(out, residuals)``, `bwd` a tuple of cotangents. `bwd` returns one cotangent per differentiable argument; None
        stands for zeros, for an argument or a subtree of one. With `symbolic_zeros`, `fwd` gets a `CustomVJPPrimal` for each array, which
        says whether it is differentiated. With `optimize_remat`, the forward pass of a `checkpoint` calls the function itself rather than
        `fwd`, whose residuals are dropped there.
        """
        self.fwd, self.bwd, self.symbolic_zeros, self.optimize_remat = fwd, bwd, symbolic_zeros, optimize_remat

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise UnsetRuleError(f"{self.name}: no derivative rule is set; give one with {self.name}.defvjp(fwd, bwd)")
        return self.call(custom_vjp_call_p, VjpRule, args, kwargs)


@dataclass(frozen=True)
class CustomVJPPrimal:
    """An argument of a forward rule: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


class VjpRule(UserRule):
    """A pair of rules, forward and backward."""

    def forward(self, primals: Sequence[Array], perturbed: Sequence[bool]) -> tuple[list[Array], list[Array], BackwardRule]:
        """Return the outputs, the residuals, and the backward pass."""
        label = f"the forward rule of {self.function.name}"
        fwd: Any = self.function.fwd
        count = len(self.arguments.traced)
        traced, values = primals[:count], primals[count:]
        rule_primals: Sequence[Any] = self.with_numbers(values)
        if self.function.symbolic_zeros:
            rule_primals = [CustomVJPPrimal(v, p) for v, p in zip(rule_primals, perturbed[count:], strict=True)]
        pair = fwd(*self.arguments.merge(traced, tree.unflatten(self.in_tree, rule_primals)))
        outs, residuals, residual_tree = _parts(self, pair, "residuals", label)
        is_array = [isinstance(r, Array) or (hasattr(r, "dtype") and type(r) is not Ref) for r in residuals]
        others = marked(residuals, is_array, False)
        avals = [v.aval for v in values]

        def backward(saved: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
            restored = tree.unflatten(residual_tree, merge(is_array, saved[count:], others))
            not_differentiated = [Zero(t.aval.tangent_aval()) for t in saved[:count]]
            return [*not_differentiated, *self.backward(self.arguments.fixed(saved[:count]), restored, cotangents, avals)]

        return outs, [*traced, *map(as_value, marked(residuals, is_array))], backward

    def backward(self, fixed: Sequence[Any], residuals: Any, cotangents: Sequence[Any], avals: Sequence[ShapedArray]) -> list[Any]:
        """Run the user's backward rule, and check the cotangents that it returns."""
        name = self.function.name
        bwd: Any = self.function.bwd
        if not self.function.symbolic_zeros:
            cotangents = [instantiate(c) for c in cotangents]
        with nullcontext() if is_internal(getattr(bwd, "__module__", None) or "volta_fn") else positions_in(backward=False):
            result = bwd(*fixed, residuals, tree.unflatten(self.out_tree, cotangents))
        args = tree.unflatten(self.in_tree, list(range(len(avals))))
        if not isinstance(result, (tuple, list)) or len(result) != len(args):
            actual = f"{len(result)} of them" if isinstance(result, (tuple, list)) else type(result).__name__
            raise TreeError(f"the backward rule of {name} must return a tuple of {len(args)} cotangents, one per argument, got {actual}")
        results: list[Any] = []
        for number, (arg, ct) in enumerate(zip(args, result, strict=True)):
            if type(arg) is Ref:
                continue
            leaves = _leaves_like(arg, ct)
            if leaves is None:
                position = self.arguments.differentiable_positions[number]
                raise TreeError(
                    f"the backward rule of {name} must return a cotangent of structure {tree.structure(arg)} for argument {position}, "
                    f"got {tree.structure(ct)}"
                )
            results += leaves
        label = f"the backward rule of {name} returned a cotangent"
        if settings.disable_bwd_checks:
            return [Zero(aval.tangent_aval()) if ct is None else ct for ct, aval in zip(results, avals, strict=True)]
        return [as_tangent(ct, aval, label, "an argument", rounded=True) for ct, aval in zip(results, avals, strict=True)]


def _leaves_like(arg: Any, cotangent: Any) -> list[Any] | None:
    """Return a cotangent's leaves (None: zero subtrees), or None on a mismatch."""
    leaves, structure = tree.flatten(cotangent, is_leaf=lambda x: x is None)
    try:
        below = [tree.structure(subtree) for subtree in tree.flatten_up_to(structure, arg)]
    except TreeError:
        return None
    # As in JAX, an array also stands for a node that holds nothing else.
    if any(leaf is not None and treedef.num_leaves != 1 for leaf, treedef in zip(leaves, below, strict=True)):
        return None
    return [leaf for leaf, treedef in zip(leaves, below, strict=True) for _ in range(treedef.num_leaves)]


class _BatchedVjpRule(_BatchedRule):
    """A pair of rules of stacked operands."""

    def forward(self, primals: Sequence[Array], perturbed: Sequence[bool]) -> tuple[list[Array], list[Array], BackwardRule]:
        count_and_backward: list[Any] = []

        def forward_example(*values: Array) -> list[Array]:
            outs, residuals, backward = self.rule.forward(values, perturbed)
            count_and_backward[:] = [len(outs), backward]
            return [*outs, *residuals]

        flat = vmap_stacked(forward_example, self.axis, primals, [0 if s else None for s in self.stacked])
        count, backward = count_and_backward
        return flat[:count], flat[count:], functools.partial(self._backward, backward)

    def _backward(self, backward: BackwardRule, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        results = _mapped(backward, self.axis, residuals, cotangents)
        return [self._for_operand(ct, is_stacked) for ct, is_stacked in zip(results, self.stacked, strict=True)]

    def _for_operand(self, ct: Any, is_stacked: bool) -> Any:
        """Sum the examples' cotangents of an operand that is not stacked."""
        if is_stacked:
            return ct
        return Zero(ct.aval.update(shape=ct.aval.shape[1:])) if type(ct) is Zero else reduce_sum(ct, (0,))


def _mapped(backward: BackwardRule, axis: AxisData, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
    """Run a backward pass for all examples of stacked values; its results are stacked."""
    zeros: list[Zero] = []
    nonzero: list[bool] = []
    count, nonzero_cotangents = len(residuals), nonzero_marks(cotangents)
    absent = [Zero(z.aval.update(shape=z.aval.shape[1:])) for z in marked(cotangents, nonzero_cotangents, False)]

    def backward_example(*values: Array) -> list[Array]:
        results = backward(values[:count], merge(nonzero_cotangents, values[count:], absent))
        nonzero[:] = nonzero_marks(results)
        zeros[:] = [Zero(z.aval.update(shape=(axis.size, *z.aval.shape))) for z in marked(results, nonzero, False)]
        return marked(results, nonzero)

    stacked = vmap_stacked(
        backward_example, axis, [*residuals, *marked(cotangents, nonzero_cotangents)], [0] * (count + sum(nonzero_cotangents))
    )
    return merge(nonzero, stacked, zeros)


def _jvp_custom_vjp(
    primals: Sequence[Array], tangents: Sequence[Any], *, call_jaxpr: ClosedJaxpr, rule: Any, num_captured: int
) -> tuple[list[Array], list[Any]]:
    check_captured(tangents, num_captured, "custom_vjp")
    operands, operand_tangents = primals[num_captured:], tangents[num_captured:]
    outs, residuals, backward = rule.forward(operands, nonzero_marks(operand_tangents))
    if rule.function.optimize_remat and in_checkpoint.get():
        outs = list(eval_jaxpr(call_jaxpr, *primals))
    differentiable = tuple([type(t) is not Zero or t.aval.dtype != dtypes.float0 for t in operand_tangents])
    avals = tuple([o.aval.tangent_aval() for o in outs])
    is_inexact = [a.dtype != dtypes.float0 for a in avals]
    out_tangents = bind(
        custom_tangent_p, *residuals, *map(instantiate, marked(operand_tangents, differentiable)),
        backward=_InexactBackward(backward, avals), differentiable=differentiable, out_avals=tuple(marked(avals, is_inexact)),
    )  # fmt: skip
    return outs, merge(is_inexact, out_tangents, map(Zero, marked(avals, is_inexact, False)))


class _InexactBackward:
    """A backward pass that takes cotangents of the outputs with inexact dtype only."""

    def __init__(self, backward: BackwardRule, avals: Sequence[ShapedArray]) -> None:
        self.backward = backward
        self.avals = avals

    def __call__(self, residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        inexact = iter(cotangents)
        return self.backward(residuals, [Zero(a) if a.dtype == dtypes.float0 else next(inexact) for a in self.avals])


custom_vjp_call_p = call_primitive("custom_vjp_call", "call_jaxpr", jvp=_jvp_custom_vjp, batch=batch_custom_call(_BatchedVjpRule))

# The linear map from tangents of operands to those of results. Only its transpose is known: the backward rule.


def _no_forward_mode(*args: Any, **params: Any) -> NoReturn:
    raise GradientError(
        "forward-mode differentiation (jvp, jacfwd, linearize) reached a function with a custom_vjp rule, which has only a reverse "
        "derivative. Use reverse mode (grad, vjp, jacrev), or define the function with custom_jvp."
    )


def _tangent_transpose(
    cotangents: Sequence[Any], *args: Any, backward: BackwardRule, differentiable: tuple[bool, ...], out_avals: tuple[ShapedArray, ...]
) -> list[Any]:
    count = len(args) - sum(differentiable)
    if any(linear_marks(args[:count])):
        _no_forward_mode()
    return [None] * count + marked(backward(args[:count], cotangents), differentiable)


def _tangent_batch(
    axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, backward: BackwardRule, out_avals: Any, **params: Any
) -> tuple[Sequence[Array], list[int]]:
    def batched(residuals: Sequence[Array], cotangents: Sequence[Any]) -> list[Any]:
        return _mapped(backward, axis, residuals, cotangents)

    out = tuple([a.update(shape=(axis.size, *a.shape)) for a in out_avals])
    outs = bind(custom_tangent_p, *stacked_in_front(axis, args, dims), backward=batched, out_avals=out, **params)
    return outs, [0] * len(outs)


#: Operands: residuals, then the tangents of the `differentiable` operands of the call. The results are the tangents of types `out_avals`.
custom_tangent_p = Primitive(
    "custom_tangent",
    lambda *avals, backward, differentiable, out_avals: out_avals,
    evaluate=_no_forward_mode,
    jvp=_no_forward_mode,
    transpose=_tangent_transpose,
    batch=_tangent_batch,
    multiple_results=True,
)


# `closure_convert` (closed-over values as arguments) and `custom_gradient`.
#
# Custom rules have no derivative for values that their function closes over; as arguments these have one.


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Array]]:
    """Make closed-over traced values arguments of `fun`; return it and those values.

    Args:
        fun: a function of pytrees of arrays, that may close over values being differentiated, mapped or traced.
        example_args: arguments of the structure and types that it will be called with.

    Returns:
        ``(converted, consts)`` such that ``converted(*args, *consts)`` is ``fun(*args)``. `consts` is empty where nothing is traced.

    Raises:
        TreeError, ShapeError: the converted function is called with other structures or types.

    >>> def half_of_derivative(y):
    ...     converted, consts = vf.closure_convert(lambda x: x * y, 1.0)
    ...     return converted(0.5, *consts)
    >>> vf.grad(half_of_derivative)(3.0)
    Array(0.5, dtype=float32, weak_type=True)
    """
    check_callable(fun, "closure_convert")
    leaves, in_tree = tree.flatten((example_args, {}))
    avals = [aval_of(x) for x in leaves]
    flat = FlatFunction(fun, in_tree)
    program, consts = hoist_tracers(trace_to_jaxpr(flat, avals, function_name(fun)))
    return _Converted(program, in_tree, flat.out_tree, len(example_args), function_name(fun)), consts


class _Converted:
    """A program as a function of pytrees, hashed by identity to be a static argument."""

    def __init__(self, program: ClosedJaxpr, in_tree: Any, out_tree: Any, count: int, name: str) -> None:
        self.program = program
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.count = count
        self.__name__ = name

    def __call__(self, *args_and_consts: Any) -> Any:
        args, consts = args_and_consts[: self.count], args_and_consts[self.count :]
        leaves, structure = tree.flatten((args, {}))
        if structure != self.in_tree:
            raise TreeError(f"{self.__name__} was converted for arguments of structure {self.in_tree}, got {structure}")
        values = [as_value(x) for x in (*consts, *leaves)]
        _check_types(values, self.program.in_avals, self.__name__)
        return tree.unflatten(self.out_tree, eval_jaxpr(self.program, *values))


def _check_types(values: Sequence[Array], avals: Sequence[ShapedArray], name: str) -> None:
    types = [(v.shape, v.dtype) for v in values]
    if types != [(a.shape, a.dtype) for a in avals]:
        raise ShapeError(f"{name} was converted for consts and arguments of types {list(avals)}, got {[v.aval for v in values]}")


def _cotangent_like(out: Any) -> Any:
    """Return a value of the type of a result's cotangent (float0 zeros for integers)."""
    value = as_value(out)
    aval = value.aval.tangent_aval()
    return value if value.dtype == aval.dtype else np.zeros(aval.shape, aval.dtype)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function whose reverse-mode rule `fun` returns, as ``(value, vjp)``.

    ``vjp(cotangent)`` returns the arguments' cotangents: a tuple, or the only one. It may use anything that `fun` has computed.

    >>> @vf.custom_gradient
    ... def f(x):
    ...     return x ** 2, lambda g: g * 10.0 * x
    >>> vf.value_and_grad(f)(3.0)
    (Array(9., dtype=float32, weak_type=True), Array(30., dtype=float32, weak_type=True))
    """
    check_callable(fun, "custom_gradient")

    @functools.wraps(fun)
    def value(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)[0]

    def forward(*args: Any, **kwargs: Any) -> Any:
        out, rule = fun(*args, **kwargs)
        return out, closure_convert(rule, tree.map(_cotangent_like, out))

    def backward(residuals: Any, cotangent: Any) -> Any:
        rule, consts = residuals
        result = rule(cotangent, *consts)
        return result if isinstance(result, tuple) else (result,)

    wrapped = custom_vjp(value)
    wrapped.defvjp(forward, backward)
    return wrapped
