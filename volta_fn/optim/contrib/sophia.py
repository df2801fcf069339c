"""Sophia: momentum over an estimate of the Hessian's diagonal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    ScalarOrSchedule,
    Updates,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.contrib.common import next_states
from volta_fn.optim.numerics import debiaser, decayed, safe_increment
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import branch, count_zero, map_leaves, map_with_state, tree_cast_like, zeros_like
from volta_fn.optim.tree_utils.arrays import tree_random_like, tree_size
from volta_fn.optim.tree_utils.math import tree_sum
from volta_fn.optim.wrappers.chain import chain
from volta_fn.primitives.callbacks import debug_callback
from volta_fn.transforms.forward import jvp
from volta_fn.transforms.grad import grad

__all__ = ["HutchinsonState", "SophiaState", "hutchinson_estimator_diag_hessian", "scale_by_sophia", "sophia"]


class HutchinsonState(NamedTuple):
    """The key of the next signs."""

    key: Any


def hutchinson_estimator_diag_hessian(random_seed: Any = None) -> GradientTransformationExtraArgs:
    """Replace updates by an estimate of the Hessian's diagonal (Hutchinson, 1989).

    It is s · (H s) for random signs s. `update` needs the parameters, and the loss as ``obj_fn=``, a function of the parameters.
    `random_seed` is a random key, by default ``random.key(0)``.

    >>> estimate = optim.contrib.hutchinson_estimator_diag_hessian()
    >>> w = vnp.array([1.0, 2.0])
    >>> estimate.update(w, estimate.init(w), w, obj_fn=lambda w: vnp.sum(w**3))[0]
    Array([ 6., 12.], dtype=float32)

    Raises `ArgumentError` without parameters or loss.
    """

    def init(params: Any) -> HutchinsonState:
        return HutchinsonState(random.key(0) if random_seed is None else random_seed)

    def update(updates: Any, state: Any, params: Any = None, obj_fn: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given = tree.map(as_value, require_params("hutchinson_estimator_diag_hessian", params))
        if obj_fn is None:
            raise ArgumentError("hutchinson_estimator_diag_hessian: update needs the loss as obj_fn=, a function of the parameters")
        key, subkey = random.split(state.key)
        signs = tree_cast_like(tree_random_like(subkey, given, random.rademacher, np.float32), given)
        product = jvp(grad(obj_fn), (given,), (signs,))[1]
        return map_leaves(lambda h, s: h * s, product, signs), HutchinsonState(key)

    return GradientTransformationExtraArgs(init, update)


class SophiaState(NamedTuple):
    """The step (int32), averages of gradients and of the Hessian's diagonal."""

    count: Counter
    mu: Updates
    nu: Updates
    hessian_fn_state: OptState


def scale_by_sophia(
    b1: Any = 0.965,
    b2: Any = 0.99,
    eps: Any = 1e-8,
    gamma: Any = 0.01,
    clip_threshold: Any | None = 1.0,
    update_interval: Any = 10,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: Any = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: Any = 0,
) -> GradientTransformationExtraArgs:
    """Scale updates as `sophia` does, without the learning rate."""
    hessian = with_extra_args_support(hessian_diagonal_fn or hutchinson_estimator_diag_hessian())

    def init(params: Any) -> SophiaState:
        return SophiaState(count_zero(), zeros_like(params, mu_dtype), zeros_like(params), hessian.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given, count = require_params("sophia", params), safe_increment(state.count)
        debias = debiaser(b1, count)

        def rule(g: Array, m: Array, h: Array) -> tuple[Array, Array, Array]:
            m = decayed(b1, g, m)
            return debias(m) / vnp.maximum(gamma * h, eps), m, h

        def measured() -> tuple[Any, Any]:
            diagonal, hessian_state = hessian.update(updates, state.hessian_fn_state, given, **extra_args)
            return next_states(lambda h, v: (decayed(b2, h, v),), diagonal, state.nu)[0], hessian_state

        steps, mu, _ = map_with_state(rule, updates, state.mu, state.nu)
        if verbose and clip_threshold is not None:
            _print_win_rate(steps, clip_threshold, count, print_win_rate_every_n_steps)
        if clip_threshold is not None:
            steps = map_leaves(lambda u: vnp.clip(u, -clip_threshold, clip_threshold), steps)
        nu, hessian_state = branch(state.count % update_interval == 0, measured, lambda: (state.nu, state.hessian_fn_state))
        return steps, SophiaState(count, mu, nu, hessian_state)

    return GradientTransformationExtraArgs(init, update)


def _print_rate(rate: Array) -> None:
    print(f"Sophia: {rate} of the elements are not clipped")


def _print_win_rate(steps: Updates, limit: Any, count: Array, every: Any) -> None:
    """Print the fraction of elements that are not clipped, once in `every` steps."""
    rate = tree_sum(tree.map(lambda u: vnp.abs(u) < limit, steps)) / tree_size(steps)
    due = count % vnp.maximum(every, 1) == 0

    def report() -> Array:
        debug_callback(_print_rate, rate)
        return count

    branch(due & (vnp.asarray(every) > 0), report, lambda: count)


def sophia(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.965,
    b2: Any = 0.99,
    eps: Any = 1e-8,
    weight_decay: Any = 1e-4,
    weight_decay_mask: MaskOrFn | None = None,
    gamma: Any = 0.01,
    clip_threshold: Any | None = 1.0,
    update_interval: Any = 10,
    hessian_diagonal_fn: GradientTransformation | None = None,
    mu_dtype: Any = None,
    verbose: bool = False,
    print_win_rate_every_n_steps: Any = 0,
) -> GradientTransformation:
    """Create Sophia (Liu et al., 2023), a clipped second-order optimizer.

    `update` needs the parameters, and what `hessian_diagonal_fn` needs: by default the loss as ``obj_fn=``.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1, b2: the decays of the averages of gradients and of the Hessian's diagonal.
        eps: the least divisor.
        weight_decay, weight_decay_mask: as in `adamw`.
        gamma: multiplies the diagonal; greater values clip fewer elements.
        clip_threshold: the limit of each element before the learning rate, None for none.
        update_interval: the diagonal is estimated once in so many steps.
        hessian_diagonal_fn: a transformation that returns the diagonal; by default `hutchinson_estimator_diag_hessian`.
        mu_dtype: the dtype of the averages of gradients.
        verbose, print_win_rate_every_n_steps: whether and how often to print the fraction of elements that are not clipped.

    >>> loss = lambda w: vnp.sum(w**2)
    >>> optimizer = optim.contrib.sophia(0.1)
    >>> w = vnp.ones(2)
    >>> optimizer.update(vf.grad(loss)(w), optimizer.init(w), w, obj_fn=loss)[0].round(4)
    Array([-0.1, -0.1], dtype=float32)
    """
    scaled = scale_by_sophia(
        b1, b2, eps, gamma, clip_threshold, update_interval, hessian_diagonal_fn, mu_dtype, verbose, print_win_rate_every_n_steps
    )
    return chain(scaled, add_decayed_weights(weight_decay, weight_decay_mask), scale_by_learning_rate(learning_rate))
