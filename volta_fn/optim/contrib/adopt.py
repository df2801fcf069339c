"""ADOPT: Adam whose second moment excludes the current gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import GradientTransformation, ScalarOrSchedule, counting_rule
from volta_fn.optim.numerics import abs_sq, decayed
from volta_fn.optim.transforms.scale_by_adam import ScaleByAdamState, zero_moments
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.tree_rules import Rule
from volta_fn.optim.wrappers.chain import chain

__all__ = ["adopt", "scale_by_adopt"]


def fourth_root(count: Any) -> Any:
    """Return count^(1/4), the limit of normalised gradients after `count` steps."""
    return count**0.25


def scale_by_adopt(
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformation:
    """Scale updates as `adopt` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        first = count == 1

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            normal = g / vnp.maximum(vnp.sqrt(v), eps)
            if use_clipping:
                limit = clip_value_fn((count - 1).astype(v.dtype))
                normal = vnp.clip(normal, -limit, limit)
            m = vnp.where(first, m, decayed(b1, normal, m))
            step = vnp.where(first, m, decayed(b1, normal, m)) if nesterov else m
            return step, m, vnp.where(first, abs_sq(g), decayed(b2, abs_sq(g), v))

        return rule

    return counting_rule(ScaleByAdamState, lambda params: zero_moments(params, mu_dtype), rule_at)


def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.9999,
    eps: Any = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> GradientTransformation:
    """Create ADOPT (Taniguchi et al., 2024), which converges with any `b2`.

    Gradients are divided by the root of the second moment of previous steps, clipped, and then averaged. The first step only measures, and
    moves nothing.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1, b2: the decays of the averages of normalised gradients and of squares.
        eps: the least divisor.
        mu_dtype: the dtype of the first; by default that of the parameters.
        nesterov: whether to look one step ahead.
        use_clipping: whether normalised gradients are clipped.
        clip_value_fn: their limit after a number of steps.

    >>> optimizer = optim.contrib.adopt(0.1)
    >>> w = vnp.ones(2)
    >>> _, state = optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> optimizer.update(vnp.array([0.5, -2.0]), state, w)[0].round(3)
    Array([-0.01,  0.01], dtype=float32)
    """
    options: dict[str, Any] = {"nesterov": nesterov, "use_clipping": use_clipping, "clip_value_fn": clip_value_fn}
    return chain(scale_by_adopt(b1, b2, eps, mu_dtype, **options), scale_by_learning_rate(learning_rate))
