"""Optimizers from the literature, with other moments or preconditioners."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    counting_rule,
    is_function,
    numbers_of_leaves,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.contrib.learning_rate_free import copied, next_states, rate_at
from volta_fn.optim.numerics import (
    Rule,
    abs_sq,
    branch,
    cast_like,
    count_zero,
    debiaser,
    decayed,
    factor,
    magnitudes,
    map_leaves,
    map_with_state,
    safe_increment,
    tree_cast_like,
    widened,
    zeros_like,
)
from volta_fn.optim.transforms.composition import chain
from volta_fn.optim.transforms.momentum import add_decayed_weights
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.second_moments import ScaleByAdamState, ScaleByBeliefState, over_root, scale_by_adam, zero_moments
from volta_fn.optim.tree_utils import tree_random_like, tree_size, tree_sum
from volta_fn.primitives.call import debug_callback
from volta_fn.transforms.grad import grad, jvp

__all__ = [
    "GaLoreDimensionNumbers", "GaLoreState", "HutchinsonState", "MadgradState", "ScaleByAdemamixState", "ScaleBySimplifiedAdEMAMixState",
    "SophiaState", "acprop", "ademamix", "adopt", "galore", "hutchinson_estimator_diag_hessian", "madgrad", "scale_by_acprop",
    "scale_by_ademamix", "scale_by_adopt", "scale_by_galore", "scale_by_madgrad", "scale_by_simplified_ademamix", "scale_by_sophia",
    "simplified_ademamix", "sophia",
]  # fmt: skip

# ACProp: Adam's direction over the deviation known before the step.


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
    >>> w = jnp.ones(2)
    >>> optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)[0]
    Array([-0.25,  1.  ], dtype=float32)
    """
    return chain(scale_by_acprop(b1, b2, eps, eps_root), add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


# AdEMAMix: Adam with a second, much slower moving average of gradients.


class ScaleByAdemamixState(NamedTuple):
    """Two step counters (int32), the fast and slow averages, and second moments."""

    count: Counter
    count_m2: Array
    m1: Updates
    m2: Updates
    nu: Updates


def scale_by_ademamix(
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 6.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
) -> GradientTransformation:
    """Scale updates as `ademamix` does, without the learning rate."""

    def init(params: Any) -> ScaleByAdemamixState:
        averages = zeros_like(params, mu_dtype), zeros_like(params, mu_dtype)
        return ScaleByAdemamixState(count_zero(), count_zero(), *averages, magnitudes(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        slow_decay, share = rate_at(b3, state.count_m2, updates), rate_at(alpha, state.count_m2, updates)
        count, count_m2 = safe_increment(state.count), safe_increment(state.count_m2)
        debias_m, debias_v = debiaser(b1, count), debiaser(b2, count)

        def rule(g: Array, fast: Array, slow: Array, v: Array) -> tuple[Array, ...]:
            fast, slow, v = decayed(b1, g, fast), decayed(slow_decay, g, slow), decayed(b2, abs_sq(g), v)
            return over_root(debias_m(fast) + share * slow, debias_v(v), eps, eps_root), fast, slow, v

        updates, m1, m2, nu = map_with_state(rule, updates, state.m1, state.m2, state.nu)
        return updates, ScaleByAdemamixState(count, count_m2, m1, m2, nu)

    return GradientTransformationExtraArgs(init, update)


def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.9,
    b2: Any = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create AdEMAMix (Pagliardini et al., 2024).

    Args:
        learning_rate: a number, a scalar array or a schedule.
        b1: the decay of the fast average of gradients.
        b2: the decay of the average of squares.
        b3: the decay of the slow average, or a schedule.
        alpha: how much the slow average counts, or a schedule.
        eps, eps_root: added to the divisor, and under its root.
        mu_dtype: the dtype of the averages of gradients; by default that of the parameters.
        weight_decay, mask: as in `adamw`.

    >>> optimizer = optim.contrib.ademamix(0.1)
    >>> w = jnp.ones(2)
    >>> optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.1,  0.1], dtype=float32)
    """
    scaled = scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


class ScaleBySimplifiedAdEMAMixState(NamedTuple):
    """The number of steps (int32), decaying sums of gradients, averages of squares."""

    t: Array
    m: Updates
    n: Updates


def scale_by_simplified_ademamix(
    b1: Any = 0.99, b2: Any = 0.95, alpha: ScalarOrSchedule = 0.0, eps: Any = 1e-8, eps_root: Any = 0.0
) -> GradientTransformation:
    """Scale updates as `simplified_ademamix` does, without the learning rate."""

    def init(params: Any) -> ScaleBySimplifiedAdEMAMixState:
        return ScaleBySimplifiedAdEMAMixState(count_zero(), zeros_like(params), magnitudes(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        share, t = rate_at(alpha, state.t, updates), safe_increment(state.t)
        debias = debiaser(b2, t)

        def rule(g: Array, m: Array, n: Array) -> tuple[Array, ...]:
            m, n = g + b1 * m, decayed(b2, abs_sq(g), n)
            return (m + share * g) / (vnp.sqrt(debias(n) + eps_root) + eps), m, n

        updates, m, n = map_with_state(rule, updates, state.m, state.n)
        return updates, ScaleBySimplifiedAdEMAMixState(t, m, n)

    return GradientTransformationExtraArgs(init, update)


def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Any = 0.99,
    b2: Any = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
) -> GradientTransformation:
    """Create the simplified AdEMAMix (Morwani et al., 2025).

    Gradients are summed, not averaged, so the learning rate is smaller than Adam's; `alpha` is
    what the current gradient counts in addition. Other arguments as for `ademamix`.

    >>> optimizer = optim.contrib.simplified_ademamix(0.1)
    >>> w = jnp.ones(2)
    >>> optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(3)
    Array([-0.1,  0.1], dtype=float32)
    """
    scaled = scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root)
    return chain(scaled, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


# ADOPT: Adam whose second moment excludes the current gradient.


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
    >>> w = jnp.ones(2)
    >>> _, state = optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)
    >>> optimizer.update(jnp.array([0.5, -2.0]), state, w)[0].round(3)
    Array([-0.01,  0.01], dtype=float32)
    """
    options: dict[str, Any] = {"nesterov": nesterov, "use_clipping": use_clipping, "clip_value_fn": clip_value_fn}
    return chain(scale_by_adopt(b1, b2, eps, mu_dtype, **options), scale_by_learning_rate(learning_rate))


# MADGRAD: momentumised, adaptive, dual averaged gradients.


class MadgradState(NamedTuple):
    """The step (int32), sums of squares and of gradients, initial parameters."""

    count: Counter
    grad_sum_sq: Updates
    s: Updates
    x0: Params


def scale_by_madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, eps: Any = 1e-6) -> GradientTransformation:
    """Replace gradients by the updates of `madgrad`, without weight decay."""

    def init(params: Any) -> MadgradState:
        return MadgradState(count_zero(), magnitudes(params), zeros_like(params), copied(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        rate = rate_at(learning_rate, state.count, updates) + eps

        def rule(g: Array, squares: Array, total: Array, p: Array, start: Array) -> tuple[Array, ...]:
            weight = factor(rate, g) * vnp.sqrt(count.astype(squares.dtype))
            squares, total = squares + weight * abs_sq(g), total + weight * g
            target = start - total / (vnp.cbrt(squares) + eps)
            return (1 - momentum) * (target - p), squares, total

        operands = (require_params("madgrad", params), state.x0)
        updates, squares, total = map_with_state(rule, updates, state.grad_sum_sq, state.s, operands=operands)
        return updates, MadgradState(count, squares, total, state.x0)

    return GradientTransformationExtraArgs(init, update)


def madgrad(learning_rate: ScalarOrSchedule, momentum: Any = 0.9, weight_decay: Any = 0.0, eps: Any = 1e-6) -> GradientTransformation:
    """Create MADGRAD (Defazio and Jelassi, 2022).

    Parameters move the fraction 1 - `momentum` of the way to initial parameters minus the weighted sum of gradients over the cube root
    of that of their squares.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        momentum: how much parameters stay where they are.
        weight_decay: added to gradients, times the parameters.
        eps: added to the learning rate and to the divisor.

    >>> optimizer = optim.contrib.madgrad(0.001)
    >>> w = jnp.ones(2)
    >>> optimizer.update(jnp.array([0.5, -2.0]), optimizer.init(w), w)[0].round(4)
    Array([-0.0008,  0.0013], dtype=float32)
    """
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))


# GaLore: optimizer states of low rank, by projected gradients.


class GaLoreDimensionNumbers(NamedTuple):
    """The axes of a weight that make the rows of a matrix, and those of its columns."""

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class GaLoreState(NamedTuple):
    """The number of steps (int32), the state of the inner optimizer, and projections."""

    count: Counter
    base_optimizer_state: OptState
    projector: Updates


class _Projection(NamedTuple):
    """The projection of a weight to a matrix of low rank."""

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: int
    columns: int
    rank: int

    @property
    def by_rows(self) -> bool:
        """Whether the rows are projected, of which there are no fewer than columns."""
        return self.rows >= self.columns

    def matrix(self, x: Array) -> Array:
        return x.transpose(self.order).reshape(self.rows, self.columns)

    def weight(self, matrix: Array) -> Array:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return matrix.reshape(self.sizes).transpose(inverse)

    def projector(self, matrix: Array) -> Array:
        """Return the singular vectors of the longer side."""
        left, _, right = vnp.linalg.svd(matrix, full_matrices=False)
        return left[:, : self.rank] if self.by_rows else _adjoint(right[: self.rank])

    def lowered(self, matrix: Array, projector: Array) -> Array:
        return _adjoint(projector) @ matrix if self.by_rows else matrix @ projector

    def raised(self, low: Array, projector: Array) -> Array:
        return projector @ low if self.by_rows else low @ _adjoint(projector)


def _adjoint(x: Array) -> Array:
    return vnp.conj(x.mT)


def _projection(x: Array, numbers: GaLoreDimensionNumbers, rank: int) -> _Projection:
    if x.ndim < 2:
        raise ShapeError(f"galore: weights of two and more axes are projected, got shape {x.shape}")
    rows, columns = (tuple(a % x.ndim for a in ((g,) if isinstance(g, int) else g)) for g in numbers)
    if sorted(rows + columns) != list(range(x.ndim)):
        raise ArgumentError(f"galore: {numbers} must name each axis of shape {x.shape} once")
    sizes = [math.prod(x.shape[a] for a in group) for group in (rows, columns)]
    order = rows + columns
    return _Projection(order, tuple(x.shape[a] for a in order), sizes[0], sizes[1], min(rank, *sizes))


def _numbers(choice: Any, values: Any) -> list[GaLoreDimensionNumbers | None]:
    """Return the dimension numbers of each leaf; None is not to be projected."""
    leaves = [as_value(x) for x in tree.leaves(values)]
    if choice is None:
        return [GaLoreDimensionNumbers() if x.ndim == 2 else None for x in leaves]
    if isinstance(choice, GaLoreDimensionNumbers):
        return [choice if x.ndim >= 2 else None for x in leaves]
    return numbers_of_leaves(choice(values) if is_function(choice) else choice, values, GaLoreDimensionNumbers, "galore")


def scale_by_galore(
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_dimension_numbers: Any = None,
) -> GradientTransformation:
    """Transform projected gradients as `galore` does, without the learning rate."""
    if not isinstance(rank, int) or isinstance(rank, bool) or rank <= 0:
        raise ArgumentError(f"galore: rank is a positive integer, got {rank!r}")
    base = scale_by_adam() if base_optimizer is None else base_optimizer

    def projections(values: Any) -> list[_Projection | None]:
        numbers = _numbers(weight_dimension_numbers, values)
        return [n and _projection(as_value(x), n, rank) for x, n in zip(tree.leaves(values), numbers, strict=True)]

    def init(params: Any) -> GaLoreState:
        leaves, treedef = tree.flatten(params)
        pairs = [_zeros(as_value(x), how) for x, how in zip(leaves, projections(params), strict=True)]
        return GaLoreState(count_zero(), base.init(treedef.unflatten([low for low, _ in pairs])), treedef.unflatten([p for _, p in pairs]))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        leaves, treedef = tree.flatten(updates)
        how, due = projections(updates), state.count % update_proj_gap == 0
        old = tree.leaves(state.projector)
        pairs = [_lowered(as_value(g), p, h, due) for g, p, h in zip(leaves, old, how, strict=True)]
        low, base_state = base.update(treedef.unflatten([g for g, _ in pairs]), state.base_optimizer_state, None)
        rows = zip(tree.leaves(low), leaves, [p for _, p in pairs], how, strict=True)
        raised = [u if h is None else cast_like(scale * h.weight(h.raised(widened(u), widened(p))), as_value(g)) for u, g, p, h in rows]
        projector = treedef.unflatten([p for _, p in pairs])
        return treedef.unflatten(raised), GaLoreState(safe_increment(state.count), base_state, projector)

    return GradientTransformationExtraArgs(init, update)


def _zeros(x: Array, how: _Projection | None) -> tuple[Array, Array]:
    """Return zeros of the shapes of a projected gradient and of its projector."""
    if how is None:
        return vnp.zeros_like(x), vnp.zeros((0, 0), x.dtype)
    longer, shorter = max(how.rows, how.columns), min(how.rows, how.columns)
    low = (how.rank, shorter) if how.by_rows else (shorter, how.rank)
    return vnp.zeros(low, x.dtype), vnp.zeros((longer, how.rank), x.dtype)


def _lowered(g: Array, projector: Array, how: _Projection | None, due: Array) -> tuple[Array, Array]:
    """Return a projected gradient, and its projector, which is renewed if `due`."""
    if how is None:
        return g, projector
    matrix = how.matrix(widened(g))
    projector = branch(due, lambda: cast_like(how.projector(matrix), projector), lambda: projector)
    return cast_like(how.lowered(matrix, widened(projector)), g), projector


def galore(
    learning_rate: ScalarOrSchedule,
    rank: int = 128,
    update_proj_gap: int = 200,
    scale: float = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_decay: Any = 0.0,
    mask: MaskOrFn | None = None,
    weight_dimension_numbers: Any = None,
) -> GradientTransformation:
    """Create an optimizer whose states have a low rank (Zhao et al., 2024).

    Gradients of matrices are projected on their leading singular vectors, transformed, and projected back, which saves memory.

    Args:
        learning_rate: a number, a scalar array or a schedule.
        rank: the number of singular vectors.
        update_proj_gap: they are renewed once in so many steps.
        scale: a factor of projected updates.
        base_optimizer: transforms projected gradients; by default `scale_by_adam`.
        weight_decay, mask: as in `adamw`.
        weight_dimension_numbers: which axes make a matrix: `GaLoreDimensionNumbers` for all weights of two and more axes, a tree of them
            with None for weights that are not projected, or a function from parameters to such a tree. By default arrays of two axes.

    >>> optimizer = optim.contrib.galore(0.1, rank=2)
    >>> optimizer.init(jnp.zeros((8, 3)))[0].base_optimizer_state.mu.shape
    (2, 3)

    Raises `ArgumentError` for a rank that is no positive integer.
    """
    low_rank = scale_by_galore(rank, update_proj_gap, scale, base_optimizer, weight_dimension_numbers)
    return chain(low_rank, add_decayed_weights(weight_decay, mask), scale_by_learning_rate(learning_rate))


# Sophia: momentum over an estimate of the Hessian's diagonal.


class HutchinsonState(NamedTuple):
    """The key of the next signs."""

    key: Any


def hutchinson_estimator_diag_hessian(random_seed: Any = None) -> GradientTransformationExtraArgs:
    """Replace updates by an estimate of the Hessian's diagonal (Hutchinson, 1989).

    It is s · (H s) for random signs s. `update` needs the parameters, and the loss as ``obj_fn=``, a function of the parameters.
    `random_seed` is a random key, by default ``random.key(0)``.

    >>> estimate = optim.contrib.hutchinson_estimator_diag_hessian()
    >>> w = jnp.array([1.0, 2.0])
    >>> estimate.update(w, estimate.init(w), w, obj_fn=lambda w: jnp.sum(w**3))[0]
    Array([ 6., 12.], dtype=float32)

    Raises `ArgumentError` without parameters or loss.
    """

    def init(params: Any) -> HutchinsonState:
        return HutchinsonState(random.key(0) if random_seed is None else random_seed)

    def update(updates: Any, state: Any, params: Any = None, obj_fn: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = tree.map(as_value, require_params("hutchinson_estimator_diag_hessian", params))
        if obj_fn is None:
            raise ArgumentError("hutchinson_estimator_diag_hessian: update needs the loss as obj_fn=, a function of the parameters")
        key, subkey = random.split(state.key)
        signs = tree_cast_like(tree_random_like(subkey, params, random.rademacher, np.float32), params)
        product = jvp(grad(obj_fn), (params,), (signs,))[1]
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
        params, count = require_params("sophia", params), safe_increment(state.count)
        debias = debiaser(b1, count)

        def rule(g: Array, m: Array, h: Array) -> tuple[Array, Array, Array]:
            m = decayed(b1, g, m)
            return debias(m) / vnp.maximum(gamma * h, eps), m, h

        def update_hessian() -> tuple[Any, Any]:
            diagonal, hessian_state = hessian.update(updates, state.hessian_fn_state, params, **extra_args)
            return next_states(lambda h, v: (decayed(b2, h, v),), diagonal, state.nu)[0], hessian_state

        steps, mu, _ = map_with_state(rule, updates, state.mu, state.nu)
        if verbose and clip_threshold is not None:
            rate = tree_sum(tree.map(lambda u: vnp.abs(u) < clip_threshold, steps)) / tree_size(steps)
            due = count % vnp.maximum(print_win_rate_every_n_steps, 1) == 0

            def report() -> Array:
                debug_callback(lambda rate: print(f"Sophia: {rate} of the elements are not clipped"), rate)
                return count

            branch(due & (vnp.asarray(print_win_rate_every_n_steps) > 0), report, lambda: count)
        if clip_threshold is not None:
            steps = map_leaves(lambda u: vnp.clip(u, -clip_threshold, clip_threshold), steps)
        nu, hessian_state = branch(state.count % update_interval == 0, update_hessian, lambda: (state.nu, state.hessian_fn_state))
        return steps, SophiaState(count, mu, nu, hessian_state)

    return GradientTransformationExtraArgs(init, update)


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

    >>> loss = lambda w: jnp.sum(w**2)
    >>> optimizer = optim.contrib.sophia(0.1)
    >>> w = jnp.ones(2)
    >>> optimizer.update(vf.grad(loss)(w), optimizer.init(w), w, obj_fn=loss)[0].round(4)
    Array([-0.1, -0.1], dtype=float32)
    """
    scaled = scale_by_sophia(
        b1, b2, eps, gamma, clip_threshold, update_interval, hessian_diagonal_fn, mu_dtype, verbose, print_win_rate_every_n_steps
    )
    return chain(scaled, add_decayed_weights(weight_decay, weight_decay_mask), scale_by_learning_rate(learning_rate))
