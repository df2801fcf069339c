"""Momentum, weight decay, noise, and orthogonalised updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random, tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.base import (
    Counter,
    EmptyState,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    ScalarOrSchedule,
    Updates,
    counting_rule,
    require_params,
    stateful_rule,
)
from volta_fn.optim.numerics import (
    Rule,
    count_zero,
    debiaser,
    decayed,
    factor,
    map_leaves,
    map_with_state,
    safe_increment,
    steps_for,
    zeros_like,
)
from volta_fn.optim.transforms.composition import masked
from volta_fn.random.keys import as_key

__all__ = [
    "AddNoiseState", "ApplyEvery", "EmaState", "MuonDimensionNumbers", "ScaleByOptimisticGradientState", "TraceState",
    "WeightDecaySchedule", "add_decayed_weights", "add_noise", "apply_every", "ema", "orthogonalize_via_newton_schulz",
    "scale_by_optimistic_gradient", "trace",
]  # fmt: skip


# Momentum: decaying sums, moving averages, sums over steps, optimistic gradients.


class TraceState(NamedTuple):
    """Decaying sums of updates."""

    trace: Updates


def trace(decay: Any, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Replace updates by their decaying sum ``t = update + decay * t``: momentum.

    With `nesterov` the result is ``update + decay * t``, with the new t. The sum is kept in `accumulator_dtype`, by default the dtype of
    the parameters.
    """

    def rule(g: Array, t: Array) -> tuple[Array, Array]:
        t = g + decay * t
        return (g + decay * t if nesterov else t), t

    return stateful_rule(TraceState, lambda params: (zeros_like(params, accumulator_dtype),), rule)


class EmaState(NamedTuple):
    """The number of steps (int32) and moving averages."""

    count: Counter
    ema: Updates


def ema(decay: Any, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """Replace updates by their exponential moving average.

    It starts at zero, which `debias` corrects. For an average of parameters, call ``update(params, state)``; see also `incremental_update`.

    >>> average = vf.optim.ema(0.9)
    >>> params = vf.numpy.array([2.0])
    >>> average.update(params, average.init(params))[0]
    Array([2.], dtype=float32)
    """

    def rule_at(count: Array) -> Rule:
        corrected = debiaser(decay, count) if debias else (lambda m: m)

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(decay, g, m)
            return corrected(m), m

        return rule

    return counting_rule(EmaState, lambda params: (zeros_like(params, accumulator_dtype),), rule_at)


class ApplyEvery(NamedTuple):
    """The number of steps since the last emission (int32) and their sum of updates."""

    count: Counter
    grad_acc: Updates


def apply_every(k: int = 1) -> GradientTransformation:
    """Emit the sum of the last k updates every k steps, and zeros in between.

    `MultiSteps` accumulates before an optimizer instead of after it.
    """
    if isinstance(k, int) and k < 1:
        raise ArgumentError(f"apply_every: k must be at least 1, got {k}")

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        first, last = state.count == 0, state.count == k - 1

        def rule(g: Array, total: Array) -> tuple[Array, Array]:
            total = vnp.where(first, g, total + g)
            return vnp.where(last, total, vnp.zeros_like(total)), total

        updates, total = map_with_state(rule, updates, state.grad_acc)
        return updates, ApplyEvery((state.count + 1) % k, total)

    return GradientTransformationExtraArgs(lambda params: ApplyEvery(count_zero(), zeros_like(params)), update)


class ScaleByOptimisticGradientState(NamedTuple):
    """A boolean, true before the first step, and the last gradient."""

    is_initial_step: Array
    previous_gradient: Updates


def scale_by_optimistic_gradient(alpha: Any = 1.0, beta: Any = 1.0) -> GradientTransformation:
    """Extrapolate by ``(alpha + beta) * gradient - beta * last gradient``."""

    def init(params: Any) -> ScaleByOptimisticGradientState:
        return ScaleByOptimisticGradientState(vnp.array(True), zeros_like(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        def rule(g: Array, last: Array) -> tuple[Array, Array]:
            return (alpha + beta) * g - beta * vnp.where(state.is_initial_step, g, last), g

        updates, last = map_with_state(rule, updates, state.previous_gradient)
        return updates, ScaleByOptimisticGradientState(vnp.array(False), last)

    return GradientTransformationExtraArgs(init, update)


# Transformations that add to updates: weight decay and noise.


class WeightDecaySchedule(NamedTuple):
    """The number of steps (int32), for a weight decay that is a schedule."""

    count: Counter


def add_decayed_weights(weight_decay: ScalarOrSchedule = 0.0, mask: MaskOrFn | None = None) -> GradientTransformation:
    """Add `weight_decay` times the parameters, which are needed.

    `weight_decay` is a number, a scalar array or a schedule; `mask` (see `masked`) selects the parameters that decay.

    >>> tx = vf.optim.add_decayed_weights(0.1, mask=lambda params: vf.tree.map(lambda p: p.ndim > 1, params))
    >>> params = {"w": vf.numpy.ones((1, 2)), "b": vf.numpy.ones(2)}
    >>> tx.update(vf.tree.map(vf.numpy.zeros_like, params), tx.init(params), params)[0]
    {'w': Array([[0.1, 0.1]], dtype=float32), 'b': Array([0., 0.], dtype=float32)}
    """
    scheduled = callable(weight_decay)

    def init(params: Any) -> OptState:
        return WeightDecaySchedule(count_zero()) if scheduled else EmptyState()

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = require_params("add_decayed_weights", params)
        rate = weight_decay(steps_for(state.count, updates)) if scheduled else weight_decay
        state = WeightDecaySchedule(safe_increment(state.count)) if scheduled else state
        if isinstance(rate, (int, float)) and rate == 0:
            return updates, state
        return map_leaves(lambda u, p: u + factor(rate, p) * p, updates, params), state

    tx = GradientTransformationExtraArgs(init, update)
    return tx if mask is None else masked(tx, mask)


class AddNoiseState(NamedTuple):
    """The number of steps (int32) and the key of the next noise."""

    count: Counter
    rng_key: Any


def add_noise(eta: Any, gamma: Any, key: Any) -> GradientTransformation:
    """Add noise of variance ``eta / t**gamma`` in step t (Neelakantan et al., 2015)."""

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        deviation = vnp.sqrt(eta / count.astype("float32") ** gamma)
        next_key, sample_key = random.split(state.rng_key)
        leaves, treedef = tree.flatten(updates)
        keys = random.split(sample_key, len(leaves))
        noise = treedef.unflatten([random.normal(k, as_value(x).shape, as_value(x).dtype) for k, x in zip(keys, leaves, strict=True)])
        return map_leaves(lambda u, n: u + factor(deviation, u) * n, updates, noise), AddNoiseState(count, next_key)

    return GradientTransformationExtraArgs(lambda params: AddNoiseState(count_zero(), as_key(key)), update)


# Orthogonalisation of weights by the Newton-Schulz iteration.

Preconditioning = Literal["frobenius", "spectral", "aol", "schatten"]

#: Coefficients of the Newton-Schulz polynomials: one triple for all steps, or one for each of the last steps.
NS_COEFFS: dict[str, Any] = {
    "standard": (3.4445, -4.7750, 2.0315),
    "dion": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}


class MuonDimensionNumbers(NamedTuple):
    """The axes that a layer sums over, and its output axes; the others are batches."""

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class Layout(NamedTuple):
    """How a weight becomes a stack of matrices.

    `order` is the order of its axes, `sizes` are their sizes in that order, `stack` is the shape of the stack.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    stack: tuple[int, int, int]


def layout_of(x: Array, numbers: MuonDimensionNumbers) -> Layout:
    """Return the layout of `x` as a stack of matrices, after a check."""

    def axes(numbers: Sequence[int] | int) -> tuple[int, ...]:
        return tuple(axis % x.ndim for axis in ((numbers,) if isinstance(numbers, int) else numbers))

    if x.ndim < 2:
        raise ShapeError(f"muon: only weights of two and more axes can be orthogonalised, got shape {x.shape}")
    rows, columns = axes(numbers.reduction_axis), axes(numbers.output_axis)
    if set(rows) & set(columns):
        raise ArgumentError(f"muon: reduction and output axes must be different ones, got {numbers} for shape {x.shape}")
    batch = tuple(axis for axis in range(x.ndim) if axis not in rows + columns)
    sizes = [math.prod(x.shape[axis] for axis in group) for group in (batch, rows, columns)]
    order = batch + rows + columns
    return Layout(order, tuple(x.shape[axis] for axis in order), (sizes[0], sizes[1], sizes[2]))


def orthogonalize_via_newton_schulz(
    x: Any,
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    preconditioning: Preconditioning = "frobenius",
    eps: float = 1e-8,
    dimension_numbers: MuonDimensionNumbers | None = None,
) -> Array:
    """Approximate the nearest orthogonal matrix.

    That is U Vᵀ of the singular value decomposition x = U S Vᵀ; the singular values of the result are near 1. Each step maps singular
    values by the odd polynomial ``a s + b s³ + c s⁵``.

    Args:
        x: a matrix, or an array whose matrices `dimension_numbers` tells.
        ns_coeffs: a, b and c, or several such triples, one for each step.
        ns_steps: the number of steps; if there are more triples, the last ones are used.
        preconditioning: scales singular values below 1 first: by the Frobenius or the spectral norm, by "aol" scalings of rows (Prach and
            Lampert, 2022) or the "schatten" norm of order 4.
        eps: the lower bound of norms.
        dimension_numbers: the axes of the matrices; unnecessary for a matrix.

    >>> q = vf.optim.orthogonalize_via_newton_schulz(vf.numpy.array([[3.0, 0.0], [0.0, 1.0]]))
    >>> vf.numpy.round(vf.numpy.abs(q))
    Array([[1., 0.], [0., 1.]], dtype=float32)

    Raises:
        ShapeError: there are no matrices, or the coefficients are not triples.
        ArgumentError: the preconditioning is unknown, or there are fewer triples than steps.
    """
    value = as_value(x)
    if value.ndim == 2:
        dimension_numbers = MuonDimensionNumbers()
    if dimension_numbers is None:
        raise ShapeError(f"orthogonalize_via_newton_schulz: pass a matrix or dimension_numbers; got shape {value.shape}")
    layout = layout_of(value, dimension_numbers)
    stack = vnp.transpose(value, layout.order).reshape(layout.stack)
    wide = layout.stack[1] <= layout.stack[2]
    matrices = _preconditioned(stack if wide else vnp.matrix_transpose(stack), preconditioning, eps)
    shape = np.shape(ns_coeffs)
    if len(shape) not in (1, 2) or shape[-1] != 3:
        raise ShapeError(f"Newton-Schulz coefficients must have shape (3,) or (n, 3), got {shape}")
    if len(shape) == 2 and shape[0] < ns_steps:
        raise ArgumentError(f"Newton-Schulz: {shape[0]} triples of coefficients are not enough for {ns_steps} steps")
    for a, b, c in [ns_coeffs] * ns_steps if len(shape) == 1 else list(ns_coeffs)[shape[0] - ns_steps :]:
        gram = matrices @ _adjoint(matrices)
        matrices = a * matrices + (b * gram + c * (gram @ gram)) @ matrices
    stack = matrices if wide else vnp.matrix_transpose(matrices)
    inverse = sorted(range(value.ndim), key=layout.order.__getitem__)
    return vnp.transpose(stack.reshape(layout.sizes), inverse)


def _adjoint(x: Array) -> Array:
    return vnp.conj(vnp.matrix_transpose(x))


def _preconditioned(x: Array, how: Preconditioning, eps: float) -> Array:
    """Return a stack of matrices scaled to singular values of at most about 1."""
    if how in ("frobenius", "spectral"):
        return x / (vnp.linalg.norm(x, ord=2 if how == "spectral" else None, axis=(-2, -1), keepdims=True) + eps)
    gram = x @ _adjoint(x)
    if how == "aol":
        return x / vnp.sqrt(vnp.maximum(vnp.sum(vnp.abs(gram), axis=-1, keepdims=True), eps))
    if how == "schatten":
        return x / vnp.sqrt(vnp.maximum(vnp.linalg.norm(gram, axis=(-2, -1), keepdims=True), eps))
    raise ArgumentError(f"Newton-Schulz: preconditioning must be 'frobenius', 'spectral', 'aol' or 'schatten', got {how!r}")
