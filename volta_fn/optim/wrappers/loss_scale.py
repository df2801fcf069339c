"""Loss scaling for float16, whose gradients vanish below 6e-8.

The loss is multiplied by a large number before differentiation. The number adapts in training (Micikevicius et al., 2018): it is halved,
and the step skipped, when a gradient overflows; it is doubled after many steps without overflow.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Self

import numpy as np

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, with_extra_args_support
from volta_fn.optim.numerics import all_finite
from volta_fn.optim.tree_rules import branch, count_zero, factor, tree_cast_like, widened

__all__ = ["DynamicLossScale", "LossScaledState", "loss_scaled"]

_LARGEST = 2.0**127


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """The loss scale (float32) and the number of finite steps since its last change.

    The other fields are static settings.

    >>> scaling = vf.optim.DynamicLossScale.init(2.0**10, period=2000)
    >>> loss = lambda w: vf.numpy.sum(w * vf.numpy.float16(1e-4))
    >>> grads = scaling.unscale(vf.grad(lambda w: scaling.scale(loss(w)))(vf.numpy.ones(2, "float16")))
    >>> grads.dtype, scaling.adjust(vf.optim.all_finite(grads)).counter
    (dtype('float32'), Array(1, dtype=int32))
    """

    loss_scale: Array
    counter: Array
    period: int = dataclasses.field(default=2000, metadata={"static": True})
    factor: float = dataclasses.field(default=2.0, metadata={"static": True})
    min_loss_scale: float = dataclasses.field(default=1.0, metadata={"static": True})

    @classmethod
    def init(cls, loss_scale: float = 2.0**15, *, period: int = 2000, factor: float = 2.0, min_loss_scale: float = 1.0) -> Self:
        """Create a scale that grows by `factor` after `period` consecutive finite steps.

        After other steps it shrinks by `factor`, to at least `min_loss_scale`. Raises `ArgumentError` for numbers out of range.
        """
        if not (loss_scale >= min_loss_scale > 0 and factor > 1 and period >= 1):
            raise ArgumentError(
                "DynamicLossScale: loss_scale >= min_loss_scale > 0, factor > 1 and period >= 1 are needed, got "
                f"{loss_scale=}, {min_loss_scale=}, {factor=}, {period=}"
            )
        return cls(vnp.asarray(loss_scale, np.float32), count_zero(), period, factor, min_loss_scale)

    def scale(self, values: Any) -> Any:
        """Multiply a loss (or a tree) by the scale, in float32 at least, where it fits."""
        return _times(self.loss_scale, values)

    def unscale(self, values: Any) -> Any:
        """Divide gradients by the scale in float32 at least, so that they do not vanish."""
        return _times(1 / self.loss_scale, values)

    def adjust(self, grads_finite: Any) -> Self:
        """Return the scale for the next step, given whether gradients were finite."""
        finite = as_value(grads_finite)
        grow = finite & (self.counter >= self.period - 1)
        grown = vnp.where(grow, vnp.minimum(self.loss_scale * self.factor, _LARGEST), self.loss_scale)
        shrunk = vnp.maximum(self.loss_scale / self.factor, self.min_loss_scale)
        counter = vnp.where(finite & ~grow, self.counter + 1, 0)
        return dataclasses.replace(self, loss_scale=vnp.where(finite, grown, shrunk), counter=lax.convert_element_type(counter, np.int32))


def _times(number: Array, values: Any) -> Any:
    def times(value: Any) -> Array:
        x = widened(as_value(value))
        return x * factor(number, x)

    return tree.map(times, values)


class LossScaledState(NamedTuple):
    """The loss scale, whether the last step was finite, and the optimizer's state."""

    loss_scale: DynamicLossScale
    last_finite: Array
    inner_state: OptState


def loss_scaled(inner: GradientTransformation, loss_scale: DynamicLossScale | None = None) -> GradientTransformationExtraArgs:
    """Wrap an optimizer for gradients of ``state.loss_scale.scale(loss)``.

    The gradients are divided by the scale, and the scale is adjusted. If a gradient has an infinity or NaN, the updates are zeros and the
    optimizer's state stays unchanged.

    >>> optimizer = optim.loss_scaled(optim.adam(1e-3), optim.DynamicLossScale.init(2.0**12))
    >>> w = vf.numpy.ones(2, "float16")
    >>> state = optimizer.init(w)
    >>> gradient = vf.grad(lambda w: state.loss_scale.scale(vf.numpy.sum(w**2)))(w)
    >>> updates, state = optimizer.update(gradient, state, w)
    >>> updates.dtype, float(state.loss_scale.loss_scale)
    (dtype('float16'), 4096.0)
    """
    inner = with_extra_args_support(inner)
    first = DynamicLossScale.init() if loss_scale is None else loss_scale

    def init(params: Any) -> LossScaledState:
        return LossScaledState(first, vnp.array(True), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        finite = all_finite(updates)

        def step() -> tuple[Any, Any]:
            changed, inner_state = inner.update(state.loss_scale.unscale(updates), state.inner_state, params, **extra_args)
            return tree_cast_like(changed, updates), inner_state

        def skip() -> tuple[Any, Any]:
            return tree.map(vnp.zeros_like, updates), state.inner_state

        new_updates, inner_state = branch(finite, step, skip)
        return new_updates, LossScaledState(state.loss_scale.adjust(finite), finite, inner_state)

    return GradientTransformationExtraArgs(init, update)
