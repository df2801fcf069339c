"""Attention as machine code, forward and backward, without storing all weights.

In the order in which to read: `blocks` (sizes, packed operands, products; logits: what queries see, biases), `kernels` (forward, and
gradients).
"""

from __future__ import annotations

from volta_fn.compiler.attention import attention_of
from volta_fn.compiler.target import RoutineMaker
from volta_fn.core.aval import ShapedArray
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.call import Form

_KERNELS = deferred("volta_fn.targets.cpu.attention.kernels")

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {
    "attention_routine": lambda avals, params: _KERNELS.forward(attention_of(avals, params["form"])),
    "attention_gradient_routine": lambda avals, params: _KERNELS.backward(
        attention_of(avals, params["form"]), to_bias=params["form"].to_bias
    ),
}

#: The widest rows whose blocks fit the caches.
_WIDEST = 512
#: The fewest queries of a head, and logits of all heads, with which blocks are faster than products and a softmax: with fewer of them
#: these stay in the level-2 cache, and gradients read weights instead of computing them again.
FEWEST_QUERIES, FEWEST_LOGITS = 128, 1 << 20


def worthwhile(avals: tuple[ShapedArray, ...], form: Form) -> bool:
    """Return whether the routines serve these operands."""
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    if any(x.features != len(x.order) - 1 for x in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    large = a.queries >= FEWEST_QUERIES and a.stack * a.queries * a.keys >= FEWEST_LOGITS
    return large and max(a.q.width, a.v.width) <= _WIDEST
