"""Optimizers with other preconditioners: GaLore and Sophia."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    ScalarOrSchedule,
    Updates,
    is_function,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.contrib.learning_rate_free import next_states
from volta_fn.optim.numerics import (
    branch,
    cast_like,
    count_zero,
    debiaser,
    decayed,
    map_leaves,
    map_with_state,
    safe_increment,
    tree_cast_like,
    widened,
    zeros_like,
)
from volta_fn.optim.transforms.momentum import add_decayed_weights
from volta_fn.optim.transforms.scale_by_adam import scale_by_adam
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.tree_utils import tree_random_like, tree_size, tree_sum
from volta_fn.optim.wrappers.composition import chain
from volta_fn.primitives.callbacks import debug_callback
from volta_fn.transforms.grad import grad, jvp

__all__ = [
    "GaLoreDimensionNumbers", "GaLoreState", "HutchinsonState", "SophiaState", "galore", "hutchinson_estimator_diag_hessian",
    "scale_by_galore", "scale_by_sophia", "sophia",
]  # fmt: skip


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
    chosen = choice(values) if is_function(choice) else choice
    flat, treedef = tree.flatten(chosen, is_leaf=lambda node: node is None or isinstance(node, GaLoreDimensionNumbers))
    subtrees = tree.flatten_up_to(treedef, values, "galore's dimension numbers and the parameters")
    return [number for number, subtree in zip(flat, subtrees, strict=True) for _ in tree.leaves(subtree)]


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
    >>> optimizer.init(vnp.zeros((8, 3)))[0].base_optimizer_state.mu.shape
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
    >>> w = vnp.array([1.0, 2.0])
    >>> estimate.update(w, estimate.init(w), w, obj_fn=lambda w: vnp.sum(w**3))[0]
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
