"""What a backward pass keeps: `print_saved_residuals`, `fwd_and_bwd`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Var, inline_calls
from volta_fn.core.staging import FlatFunction, argument_labels, function_name, trace_to_jaxpr
from volta_fn.jit.function import jit
from volta_fn.primitives.call import jit_p
from volta_fn.transforms.checkpoint import checkpoint_p, name_p
from volta_fn.transforms.differentiation import linearize_flat
from volta_fn.transforms.grad import arguments_at, partial_function, vjp


def saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[ShapedArray, str]]:
    """Return the type and origin of each value that the backward pass of `f` reads.

    >>> import volta_fn as vf
    >>> vf.ad_checkpoint.saved_residuals(lambda x: vf.numpy.float32(3) * x * x, vf.numpy.ones(2))[0]
    (f32[2], 'from the argument x')
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    flat = FlatFunction(f, in_tree)
    labels = argument_labels(f, in_tree)

    def residuals(*values: Array) -> list[Array]:
        return linearize_flat(flat, values, name=function_name(f))[1].consts

    program = trace_to_jaxpr(residuals, [as_value(x).aval for x in leaves], function_name(f), labels)
    program = inline_calls(inline_calls(program, checkpoint_p), jit_p)
    origins = dict.fromkeys(program.jaxpr.constvars, "from a constant")
    origins |= {v: f"from the argument {label}" for v, label in zip(program.jaxpr.invars, labels, strict=True)}
    for eqn in program.eqns:
        where = f" from {eqn.source.place} ({eqn.source.function})" if eqn.source else ""
        named = f"named {eqn.params['name']!r}" if eqn.primitive is name_p else f"output of {eqn.primitive}"
        origins |= dict.fromkeys(eqn.outvars, f"{named}{where}")
    saved = {v: v.aval for v in program.jaxpr.outvars if isinstance(v, Var)}
    return [(aval, origins[v]) for v, aval in saved.items()]


def print_saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print what the backward pass of `f` reads, a line for each value.

    >>> import volta_fn as vf
    >>> vf.ad_checkpoint.print_saved_residuals(lambda x: x * x, vf.numpy.ones(2))
    f32[2] from the argument x
    """
    for aval, origin in saved_residuals(f, *args, **kwargs):
        print(f"{aval} {origin}")


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the forward and the backward pass of a function, as functions.

    Args:
        fun: the function, with `has_aux` of a pair (result, anything).
        argnums: the positional arguments to differentiate with respect to.
        jitted: compile both.

    Returns:
        ``fwd(*args)``, which returns ``(result, residuals)`` (or ``(result, residuals, aux)``), and ``bwd(residuals, cotangent)``, which
        returns a tuple of cotangents, one for each of `argnums`.

    >>> import volta_fn as vf
    >>> fwd, bwd = vf.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> value, residuals = fwd(2.0, 3.0)
    >>> bwd(residuals, 1.0)
    (Array(3., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """

    def fwd(*args: Any, **kwargs: Any) -> Any:
        positions, arguments = arguments_at(args, argnums, "fwd_and_bwd")
        return vjp(partial_function(fun, args, positions, kwargs), *arguments, has_aux=has_aux)

    def bwd(residuals: Any, cotangent: Any) -> Any:
        return residuals(cotangent)

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
