"""COCOB: learning without learning rates, by betting on coins."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    ScalarOrSchedule,
    Updates,
    require_params,
)
from volta_fn.optim.contrib.common import copied
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import full_like, map_with_state, zeros_like
from volta_fn.optim.wrappers.chain import chain

__all__ = ["COCOBState", "cocob", "scale_by_cocob"]


class COCOBState(NamedTuple):
    """Initial parameters; sums, maxima and sums of magnitudes of gradients; gains."""

    init_particles: Updates
    cumulative_gradients: Updates
    scale: Updates
    subgradients: Updates
    reward: Updates


def scale_by_cocob(alpha: Any = 100.0, eps: Any = 1e-8) -> GradientTransformation:
    """Replace updates as `cocob` does, without weight decay."""

    def init(params: Any) -> COCOBState:
        zeros = [zeros_like(params) for _ in range(3)]
        return COCOBState(copied(params), zeros[0], full_like(params, eps), zeros[1], zeros[2])

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        def rule(g: Array, total: Array, largest: Array, size: Array, reward: Array, p: Array, start: Array) -> tuple[Array, ...]:
            largest, size = vnp.maximum(largest, vnp.abs(g)), size + vnp.abs(g)
            reward, total = vnp.maximum(reward - g * (p - start), 0), total - g
            bet = total / (largest * vnp.maximum(size + largest, alpha * largest)) * (largest + reward)
            return start + bet - p, total, largest, size, reward

        given = (require_params("cocob", params), state.init_particles)
        updates, *states = map_with_state(rule, updates, *state[1:], given=given)
        return updates, COCOBState(state.init_particles, *states)

    return GradientTransformationExtraArgs(init, update)


def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: Any = 100.0,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create COCOB-Backprop (Orabona and Tommasi, 2017), without a learning rate.

    Each parameter moves from its initial value by a fraction of the gains so far.

    Args:
        learning_rate: multiplies the gradients; 1 is meant.
        alpha: limits the fraction in the first steps.
        eps: the initial estimate of the largest gradient.
        weight_decay, mask: as in `adamw`, added to gradients.

    >>> optimizer = optim.contrib.cocob()
    >>> w = vnp.ones(2)
    >>> optimizer.update(vnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.01,  0.01], dtype=float32)
    """
    rate = scale_by_learning_rate(learning_rate, flip_sign=False)
    return chain(add_decayed_weights(weight_decay, mask), rate, scale_by_cocob(alpha, eps))
