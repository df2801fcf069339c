"""Calls of sub-programs: `jit` and attention; identities that are barriers.

Attention calls its own expansion, which a target without a routine inlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.movement import instantiate, zero_jvp

# `jit`'s primitive: a call of a sub-program.
#
# Transforms apply to the sub-program; `jit` decides how it runs.


def call_primitive(name: str, parameter: str = "jaxpr", **rules: Any) -> Primitive:
    """Declare the call of a program, which the parameter of that name holds.

    Its results are those of the program, and compilers inline it. `rules` are the call's own, as `Primitive` takes them.
    """
    return Primitive(
        name,
        lambda *avals, **params: tuple(params[parameter].out_avals),
        multiple_results=True,
        holds_programs=True,
        call_param=parameter,
        views=True,
        **rules,
    )


#: ``jaxpr`` has concrete constants only; ``donated`` marks the operands whose memory the call may reuse (empty: none).
jit_p = call_primitive("jit")


def call_params(jaxpr: ClosedJaxpr, name: str) -> dict[str, Any]:
    """Return the parameters of a call that donates nothing."""
    return {"jaxpr": jaxpr, "name": name, "donated": ()}


# Identities that stop derivatives or the compiler's rearrangements.

# stop_gradient


stop_gradient_p: Primitive = Primitive(
    "stop_gradient",
    lambda operand: operand,
    evaluate=lambda operand: operand,
    jvp=zero_jvp,
    batch=lambda axis, args, dims: (bind(stop_gradient_p, *args), dims[0]),
    views=True,
)


T = TypeVar("T", bound=Any)


def stop_gradient(x: T) -> T:
    """Return `x`, a pytree of arrays, as constants for differentiation.

    >>> import volta_fn as vf
    >>> vf.grad(lambda x: x * vf.lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: bind(stop_gradient_p, as_value(leaf)), x)


# optimization_barrier


def _barrier_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Sequence[Array], Sequence[Any]]:
    outs = bind(optimization_barrier_p, *primals)
    live = [t for t in tangents if type(t) is not Zero]
    out_tangents = iter(bind(optimization_barrier_p, *live) if live else ())
    return outs, [t if type(t) is Zero else next(out_tangents) for t in tangents]


optimization_barrier_p: Primitive = Primitive(
    "optimization_barrier",
    lambda *operands: operands,
    evaluate=lambda *operands: operands,
    jvp=_barrier_jvp,
    transpose=lambda cotangents, *args: [
        instantiate(ct) if type(arg) is Linear else None for ct, arg in zip(cotangents, args, strict=True)
    ],
    batch=lambda axis, args, dims: (bind(optimization_barrier_p, *args), dims),
    multiple_results=True,
    views=True,
)


def optimization_barrier(operand: Any) -> Any:
    """Return `operand`, a pytree of arrays, all of which is computed before any use.

    The compiler does not merge equations across the barrier.
    """
    leaves, structure = tree.flatten(operand)
    if not leaves:
        return operand
    return tree.unflatten(structure, bind(optimization_barrier_p, *[as_value(x) for x in leaves]))


# tokens


def create_token(_: Any = None) -> Array:
    """Return a token, by which programs for XLA order effects.

    Effects here keep the order of the program, so a token is an empty array.

    >>> vf.lax.create_token().shape
    (0,)
    """
    return as_value(np.zeros((0,), np.bool_))


def after_all(*operands: Any) -> Array:
    """Return a token that waits for the given ones.

    >>> vf.lax.after_all(vf.lax.create_token(), vf.lax.create_token()).shape
    (0,)
    """
    return optimization_barrier((create_token(), operands))[0]


# Attention as calls of its expansions, which targets without a routine inline.
#
# Each of the three calls holds its expansion as a program (`jaxpr`), and a description for targets with routines (`Form`):
#
# - ``attention(q, k, v[, mask])`` gives the result, and the statistics of the softmax: for each query its largest logit and the sum of its
#   weights relative to that, of shape (*heads, queries, 2).
# - ``attention_tangent(q, k, v[, mask], result, statistics, *tangents)`` gives the result's tangent, and is linear in the tangents, one
#   for each of q, k and v that `moved` marks.
# - ``attention_gradient(q, k, v[, mask], result, statistics, cotangent)`` gives the cotangents of the `moved` ones of q, k and v. It is the
#   tangent's transpose; with the statistics a routine needs no array of all weights.
#
# Their derivatives and batching rules are in `volta_fn.transforms.rules`.


class Axes(NamedTuple):
    """The roles of an array's axes: heads (of all batch entries), rows, features."""

    heads: tuple[int, ...]
    rows: int
    features: int

    @property
    def order(self) -> tuple[int, ...]:
        """The axes as heads, rows, features."""
        return (*self.heads, self.rows, self.features)

    @property
    def inverse(self) -> tuple[int, ...]:
        """The position of each axis in that order."""
        return tuple(np.argsort(self.order).tolist())

    def batched(self) -> Axes:
        """Return the axes of arrays with a leading axis of examples, counted as heads."""
        return Axes((0, *[a + 1 for a in self.heads]), self.rows + 1, self.features + 1)


class Form(NamedTuple):
    """The layout and options of an attention, for routines.

    Keys have as many axes of heads as queries; the last one may be shorter, by a factor: each head then serves several of queries. The
    result has the axes of q, gradients have those of what they belong to.
    """

    q: Axes
    k: Axes
    v: Axes
    cotangent: Axes | None
    #: The scale of logits, and their value where a query does not see a key.
    scale: float
    unseen: float
    #: Whether the mask is causal, and whether there is another one, which broadcasts to (*heads, queries, keys).
    causal: bool
    masked: bool


attention_p = call_primitive("attention")
attention_tangent_p = call_primitive("attention_tangent")
attention_gradient_p = call_primitive("attention_gradient")

#: The calls that a target may have routines for.
ROUTINE_CALLS = frozenset((attention_p, attention_gradient_p))


def attention_params(jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...] = ()) -> dict[str, Any]:
    """Return the parameters of one of the calls."""
    return {"jaxpr": jaxpr, "form": form, "moved": moved}
