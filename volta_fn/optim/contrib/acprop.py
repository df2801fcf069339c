"""ACProp: Adam's direction over the deviation known before the step."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import GradientTransformation, MaskOrFn, ScalarOrSchedule, counting_rule
from volta_fn.optim.numerics import abs_sq, debiaser, decayed
from volta_fn.optim.transforms.scale_by_adam import zero_moments
from volta_fn.optim.transforms.scale_by_adam_variants import ScaleByBeliefState
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import Rule
from volta_fn.optim.wrappers.chain import chain

__all__ = ["acprop", "scale_by_acprop"]


def scale_by_acprop(b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-16, eps_root: Any = 1e-16) -> GradientTransformation:
    """Scale updates as `acprop` does, without the learning rate."""

    def rule_at(count: Array) -> Rule:
        first, debias = count == 1, debiaser(b2, vnp.maximum(count - 1, 1))

        def rule(g: Array, m: Array, v: Array) -> tuple[Array, Array, Array]:
            before = vnp.where(first, 1, debias(v))
            v = decayed(b2, abs_sq(g - m), v) + eps_root
            return g / (vnp.sqrt(before) + eps), decayed(b1, g, m), v

        return rule

    return counting_rule(ScaleByBeliefState, zero_moments, rule_at)


def acprop(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-16,
    eps_root: Any = 1e-16,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create ACProp (Zhuang et al., 2021).

    Gradients are divided by the root of their variance about the moving average, as in `adabelief`, but by that of the previous steps.

    >>> optimizer = optim.contrib.acprop(0.5)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0]
    Array([-0.25,  1.  ], dtype=float32)
    """
    return chain(scale_by_acprop(b1, b2, eps, eps_root), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))
