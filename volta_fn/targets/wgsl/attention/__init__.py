"""Attention in WGSL, forward and backward, without storing all weights.

In the order in which to read: `blocks` (the division of work; rows in memory, their products, masks), and `kernels` (forward, the gradient
by the bias, and the other gradients).
"""

from __future__ import annotations

from typing import Any

from volta_fn.compiler.attention import attention_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import Form
from volta_fn.targets.wgsl.attention.kernels import backward, forward
from volta_fn.targets.wgsl.routine import Routine

#: The widest rows that fit an invocation's registers, and the shortest columns for which blocks are not mostly empty.
_WIDEST, _SHORTEST = 128, 16
#: The most masks and biases that a shader binds.
_MOST_EXTRA = 2


def attention(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine of the equation."""
    return forward(attention_of(avals, params["form"]), capabilities)


def attention_gradient(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine:
    """Return the routine of the equation."""
    return backward(attention_of(avals, params["form"]), capabilities, to_bias=params["form"].to_bias)


#: Makers of routines by the name of the instruction.
ROUTINES = {"attention_routine": attention, "attention_gradient_routine": attention_gradient}


def worthwhile(avals: tuple[ShapedArray, ...], form: Form, capabilities: TargetCapabilities) -> bool:
    """Return whether the routines serve these operands with mostly full blocks."""
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    if form.biased + form.masks > _MOST_EXTRA or avals[0].dtype.itemsize > 4 or any(a.features != len(a.order) - 1 for a in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    elements = [*[x.elements for x in (a.q, a.k, a.v, a.out)], *([] if a.bias is None else [a.bias.elements])]
    largest = max(4 * max(elements), 16 * a.stack * a.queries * (1 + -(-a.q.width // 4)))
    return max(a.q.width, a.v.width) <= _WIDEST and min(a.queries, a.keys) >= _SHORTEST and largest <= capabilities.binding
