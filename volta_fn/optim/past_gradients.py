"""Updates that look back at the last gradient: resilient propagation and optimistic gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates
from volta_fn.optim.leaves import full_like, map_with_state, zeros_like


class ScaleByRpropState(NamedTuple):
    """The step size of every element and the last updates."""

    step_sizes: Updates
    prev_updates: Updates


def scale_by_rprop(
    learning_rate: Any, eta_minus: Any = 0.5, eta_plus: Any = 1.2, min_step_size: Any = 1e-6, max_step_size: Any = 50.0
) -> GradientTransformation:
    """Steps of the gradients' signs, each element's size growing while its sign stays (Riedmiller and Braun, 1993).

    Where the sign changes, the size shrinks and no step is taken.
    """

    def rule(g: Array, size: Array, last: Array) -> tuple[Array, Array, Array]:
        agreement = g * last
        resized = vnp.clip(vnp.where(agreement > 0, eta_plus * size, eta_minus * size), min_step_size, max_step_size)
        size = vnp.where(agreement == 0, size, resized)
        turned = agreement < 0
        step = vnp.where(turned, 0, size * vnp.sign(g))
        return step, size, step

    def init(params: Params) -> ScaleByRpropState:
        return ScaleByRpropState(full_like(params, learning_rate), zeros_like(params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        updates, sizes, last = map_with_state(rule, updates, state.step_sizes, state.prev_updates)
        return updates, ScaleByRpropState(sizes, last)

    return GradientTransformationExtraArgs(init, update)


class ScaleByOptimisticGradientState(NamedTuple):
    """Whether no step has been taken yet, and the last gradient."""

    is_initial_step: Array
    previous_gradient: Updates


def scale_by_optimistic_gradient(alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformation:
    """``(alpha + beta) * gradient - beta * last gradient`` (Mokhtari et al., 2019)."""

    def init(params: Params) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(vnp.array(True), zeros_like(params))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        def rule(g: Array, last: Array) -> tuple[Array, Array]:
            return (alpha + beta) * g - beta * vnp.where(state.is_initial_step, g, last), g

        updates, last = map_with_state(rule, updates, state.previous_gradient)
        return updates, ScaleByOptimisticGradientState(vnp.array(False), last)

    return GradientTransformationExtraArgs(init, update)
