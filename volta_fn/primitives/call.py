"""Calls of programs, and barriers: primitives that compute nothing themselves.

The calls are those of `jit`, and those of attention, which targets without a routine inline. Barriers are identities that stop derivatives
or the compiler's rearrangements; tokens are made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.movement import instantiate, zero_jvp

# Calls of programs, among them `jit`'s.


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


# Attention as calls of its expansions, which targets without a routine inline.
#
# Each of the three calls holds its expansion as a program (`jaxpr`), and a description for targets with routines (`Form`):
#
# - ``attention(q, k, v[, bias], *masks)`` gives the result, and the statistics of the softmax: for each query its largest logit and the
# sum of its weights relative to that, of shape (*heads, queries, 2).
# - ``attention_tangent(q, k, v[, bias], *masks, result, statistics, *tangents)`` gives the result's tangent, and is linear in the
# tangents, one for each of q, k, v and the bias that `moved` marks.
# - ``attention_gradient(q, k, v[, bias], *masks, result, statistics, cotangent)`` gives the cotangents of the `moved` ones of q, k, v and
# the bias. It is the tangent's transpose; with the statistics a routine needs no array of all weights.
#
# Their derivatives and batching rules are in `volta_fn.transforms.call_rules`.


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


class Window(NamedTuple):
    """How many keys before and after its own position a query sees; None: all."""

    before: int | None = None
    after: int | None = None


#: Queries see the keys up to their own position.
CAUSAL = Window(None, 0)


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
    #: The keys that a query sees by their positions.
    window: Window = Window()
    #: The bound of logits, which become ``softcap tanh(logit / softcap)`` before the bias is added; 0: none.
    softcap: float = 0.0
    #: Whether there is a bias, and how many masks there are. Each broadcasts to (*heads, queries, keys).
    biased: bool = False
    masks: int = 0
    #: Whether a gradient is that of the bias, too.
    to_bias: bool = False

    @property
    def operands(self) -> int:
        """How many operands there are: q, k, v, the bias and the masks."""
        return 3 + self.biased + self.masks


attention_p = call_primitive("attention")
attention_tangent_p = call_primitive("attention_tangent")
attention_gradient_p = call_primitive("attention_gradient")

#: The calls that a target may have routines for.
ROUTINE_CALLS = frozenset((attention_p, attention_gradient_p))


def attention_params(jaxpr: ClosedJaxpr, form: Form, moved: tuple[bool, ...] = ()) -> dict[str, Any]:
    """Return the parameters of one of the calls."""
    return {"jaxpr": jaxpr, "form": form, "moved": moved}


# Barriers: stop_gradient, optimization_barrier, and tokens.


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
    nonzero = [t for t in tangents if type(t) is not Zero]
    out_tangents = iter(bind(optimization_barrier_p, *nonzero) if nonzero else ())
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
