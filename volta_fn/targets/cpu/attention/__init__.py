"""Attention as machine code, forward and backward, without storing all weights.

In the order in which to read: `blocks` (sizes, packed operands, products; logits: what queries see, biases), `kernels` (forward, and
gradients), `few_queries` (forward, without packing).
"""

from __future__ import annotations

from volta_fn.compiler.attention import Attention, attention_of
from volta_fn.compiler.target import RoutineMaker
from volta_fn.core.aval import ShapedArray
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.call import Form
from volta_fn.targets.cpu.routine import Routine

_KERNELS = deferred("volta_fn.targets.cpu.attention.kernels")
_FEW_QUERIES = deferred("volta_fn.targets.cpu.attention.few_queries")

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {
    "attention_routine": lambda avals, params: _forward(attention_of(avals, params["form"])),
    "attention_gradient_routine": lambda avals, params: _KERNELS.backward(
        attention_of(avals, params["form"]), to_bias=params["form"].to_bias
    ),
}

#: The widest rows whose blocks fit the caches.
_WIDEST = 512
#: The fewest queries of a head, and logits of all heads, with which blocks are faster than products and a softmax: with fewer of them
#: these stay in the level-2 cache, and gradients read weights instead of computing them again.
FEWEST_QUERIES, FEWEST_LOGITS = 128, 1 << 20
#: The most queries of heads that share keys, and the fewest keys, for which keys and values are read in place.
MOST_ROWS, FEWEST_KEYS = 16, 64


def has_few_queries(a: Attention) -> bool:
    """Return whether keys and values are best read in place.

    They are read once for all queries of the heads that share them. A single query of float32 or float64 gains nothing: loops over keys
    and values compute it.
    """
    rows = a.queries * a.shared
    return rows <= MOST_ROWS and a.keys >= FEWEST_KEYS and (rows > 1 or a.q.dtype.itemsize < 4)


def _forward(a: Attention) -> Routine:
    return (_FEW_QUERIES if has_few_queries(a) else _KERNELS).forward(a)


def worthwhile(avals: tuple[ShapedArray, ...], form: Form) -> bool:
    """Return whether the routines serve these operands."""
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    if any(x.features != len(x.order) - 1 for x in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    few = form.cotangent is None and not form.statistics and has_few_queries(a)  # a gradient reads the weights that products have stored
    large = a.queries >= FEWEST_QUERIES and a.stack * a.queries * a.keys >= FEWEST_LOGITS
    return (few or large) and max(a.q.width, a.v.width) <= _WIDEST
