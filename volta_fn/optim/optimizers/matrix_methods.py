"""L-BFGS, and Muon for matrices, each with its own transformations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    is_function,
    require_params,
    stateless,
)
from volta_fn.optim.line_search import scale_by_zoom_linesearch
from volta_fn.optim.numerics import (
    add_scaled,
    count_zero,
    decayed,
    global_norm,
    map_leaves,
    map_with_state,
    real_dot,
    safe_increment,
    scaled_by,
    sum_of_squares,
    tree_cast_like,
    widened,
    widest_real,
    zeros_like,
)
from volta_fn.optim.optimizers.first_order import adamw
from volta_fn.optim.transforms.momentum import (
    NS_COEFFS,
    MuonDimensionNumbers,
    Preconditioning,
    add_decayed_weights,
    layout_of,
    orthogonalize_via_newton_schulz,
)
from volta_fn.optim.transforms.scaling import scale, scale_by_learning_rate
from volta_fn.optim.transforms.second_moments import momentum_debiaser
from volta_fn.optim.wrappers.composition import chain, partition

__all__ = ["MuonState", "ScaleByLBFGSState", "lbfgs", "muon", "scale_by_lbfgs", "scale_by_muon", "scale_by_shape"]


# L-BFGS (Liu and Nocedal, 1989).
#
# Steps are scaled by an estimate of the inverse Hessian from the last few steps.


class ScaleByLBFGSState(NamedTuple):
    """The step counter (int32), last parameters and gradients, stacked differences.

    The newest difference is last. `weights_memory` holds one over the inner products of the differences of parameters and of gradients.
    """

    count: Counter
    params: Params
    updates: Updates
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: Array


def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransformation:
    """Multiply gradients by L-BFGS's estimate of the inverse Hessian.

    Needs the parameters.

    Args:
        memory_size: the number of steps remembered.
        scale_init_precond: whether the estimate starts from the multiple of the identity that fits the last step, instead of the
            identity. Before there is a last step, the multiple makes the norm of the first step at most 1.

    Raises `ArgumentError` for a memory of less than one step.
    """
    if memory_size < 1:
        raise ArgumentError(f"scale_by_lbfgs: memory_size must be at least 1, got {memory_size}")

    def init(params: Any) -> ScaleByLBFGSState:
        wide = tree.map(lambda p: widened(as_value(p)), params)
        stack = tree.map(lambda p: vnp.zeros((memory_size, *p.shape), p.dtype), wide)
        weights = vnp.zeros(memory_size, widest_real(params))
        return ScaleByLBFGSState(count_zero(), zeros_like(params), zeros_like(params), stack, stack, weights)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = tree_cast_like(require_params("scale_by_lbfgs", params), state.params)
        updates = tree_cast_like(updates, state.updates)
        started = state.count > 0
        steps, changes = (_differences(new, old, started) for new, old in ((params, state.params), (updates, state.updates)))
        product = real_dot(changes, steps)
        weight = vnp.where(product == 0, 0, 1 / vnp.where(product == 0, 1, product))
        old = (state.diff_params_memory, state.diff_updates_memory, state.weights_memory)
        memory = tree.map(_remember, old, (steps, changes, weight))
        initial = _initial_scale(updates, changes, product, started) if scale_init_precond else vnp.ones_like(product)
        new_updates = tree_cast_like(_two_loops(updates, memory, initial), updates)
        return new_updates, ScaleByLBFGSState(safe_increment(state.count), params, updates, *memory)

    return GradientTransformationExtraArgs(init, update)


def _differences(new: Any, old: Any, started: Array) -> Any:
    """Return new minus old, in float32 at least; zeros before the first step."""
    return tree.map(lambda a, b: vnp.where(started, widened(as_value(a)) - widened(b), 0), new, old)


def _remember(stack: Array, newest: Array) -> Array:
    return vnp.concatenate([stack[1:], newest[None].astype(stack.dtype)])


def _initial_scale(updates: Updates, changes: Updates, product: Array, started: Array) -> Array:
    squares = sum_of_squares(changes)
    fitting = vnp.where(squares > 0, product / vnp.where(squares > 0, squares, 1), 1)
    return vnp.where(started, fitting, vnp.minimum(1, 1 / global_norm(updates)))


def _two_loops(vector: Any, memory: tuple[Any, Any, Array], initial: Array) -> Any:
    """Multiply a vector by the estimated inverse Hessian."""
    vector = tree.map(lambda v: widened(as_value(v)), vector)

    def backward(v: Any, remembered: Any) -> tuple[Any, Array]:
        step, change, weight = remembered
        alpha = weight * real_dot(step, v)
        return add_scaled(v, -alpha, change), alpha

    def forward(v: Any, remembered: Any) -> tuple[Any, None]:
        step, change, weight, alpha = remembered
        return add_scaled(v, alpha - weight * real_dot(change, v), step), None

    vector, alphas = lax.scan(backward, vector, memory, reverse=True)
    return lax.scan(forward, scaled_by(initial, vector), (*memory, alphas))[0]


_ZOOM = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = _ZOOM,
) -> GradientTransformationExtraArgs:
    """Create L-BFGS with a line search, for losses without noise.

    With a line search `update` needs ``value=``, ``grad=`` and ``value_fn=`` (see `scale_by_zoom_linesearch`, the default, and
    `scale_by_backtracking_linesearch`); `value_and_grad_from_state` avoids computing loss and gradient twice.

    Args:
        learning_rate: multiplies the updates before the line search; 1 if None.
        memory_size, scale_init_precond: those of `scale_by_lbfgs`.
        linesearch: a transformation, None for no line search.

    >>> rosenbrock = lambda w: (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    >>> optimizer = optim.lbfgs()
    >>> @vf.jit
    ... def step(w, state):
    ...     value, grad = optim.value_and_grad_from_state(rosenbrock)(w, state=state)
    ...     updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=rosenbrock)
    ...     return optim.apply_updates(w, updates), state
    >>> w = vf.numpy.array([-1.2, 1.0])
    >>> state = optimizer.init(w)
    >>> for _ in range(40):
    ...     w, state = step(w, state)
    >>> w.round(2)
    Array([1., 1.], dtype=float32)
    """
    descend = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    return chain(scale_by_lbfgs(memory_size, scale_init_precond), descend, identity() if linesearch is None else linesearch)


# Muon (Jordan et al., 2024) for matrices, AdamW for other parameters.


class MuonState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def _dimension_numbers(choice: Any, updates: Updates) -> list[Any]:
    """Return the dimension numbers of each leaf of the updates, or None."""
    numbers = choice(updates) if is_function(choice) else choice
    if numbers is None:
        return [None] * len(tree.leaves(updates))
    flat, treedef = tree.flatten(numbers, is_leaf=lambda node: node is None or isinstance(node, MuonDimensionNumbers))
    subtrees = tree.flatten_up_to(treedef, updates, "muon's dimension numbers and the updates")
    return [number for number, subtree in zip(flat, subtrees, strict=True) for _ in tree.leaves(subtree)]


def scale_by_muon(
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: float = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    weight_dimension_numbers: Any = None,
) -> GradientTransformation:
    """Replace updates of matrices by orthogonalised momentum, as `muon` does.

    `weight_dimension_numbers` says which axes of other weights make matrices. With `adaptive` the result is scaled by its inner product
    with the momentum.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        count = safe_increment(state.count)
        corrected = momentum_debiaser(beta, count, nesterov)
        numbers = iter(_dimension_numbers(weight_dimension_numbers, updates))

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(beta, g, m)
            m_hat = corrected(m, g)
            step = orthogonalize_via_newton_schulz(m_hat, ns_coeffs, ns_steps, preconditioning, eps, next(numbers))
            return (vnp.sum(vnp.conj(m_hat) * step) * step if adaptive else step), m

        updates, mu = map_with_state(rule, updates, state.mu)
        return updates, MuonState(count, mu)

    return GradientTransformationExtraArgs(lambda params: MuonState(count_zero(), zeros_like(params, mu_dtype)), update)


def scale_by_shape(weight_dimension_numbers: Any = None, consistent_rms: Any = None) -> GradientTransformation:
    """Multiply matrices by ``sqrt(max(1, outputs / inputs))``.

    If `consistent_rms` is given, the factor is ``sqrt(max(inputs, outputs)) * consistent_rms``.
    """

    def scaled(u: Array, numbers: MuonDimensionNumbers) -> Array:
        _, inputs, outputs = layout_of(u, numbers).stack
        if consistent_rms is None:
            return math.sqrt(max(1, outputs / max(inputs, 1))) * u
        return math.sqrt(max(inputs, outputs)) * consistent_rms * u

    def apply(updates: Any, params: Any) -> Any:
        numbers = iter(_dimension_numbers(weight_dimension_numbers, updates))
        return map_leaves(lambda u: scaled(u, next(numbers) or MuonDimensionNumbers()), updates)

    return stateless(apply)


def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    beta: Any = 0.95,
    eps: float = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: MaskOrFn | None = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: Preconditioning = "frobenius",
    adam_b1: Any = 0.9,
    adam_b2: Any = 0.999,
    adam_eps_root: Any = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Any = None,
) -> GradientTransformation:
    """Create Muon for matrices, with AdamW for the other parameters.

    AdamW uses Nesterov's momentum if `nesterov`.

    Args:
        learning_rate, weight_decay, weight_decay_mask: as in `adamw`, for matrices; `adam_learning_rate` (by default the same) and
            `adam_weight_decay` for the others, with `adam_b1`, `adam_b2`, `adam_eps_root`.
        ns_coeffs: the coefficients of `orthogonalize_via_newton_schulz`, or "standard" or "dion".
        ns_steps, preconditioning, eps: those of `orthogonalize_via_newton_schulz`.
        beta, nesterov, adaptive, mu_dtype: those of `scale_by_muon`.
        muon_weight_dimension_numbers: a tree of `MuonDimensionNumbers`, with None for the parameters of AdamW, or a function from
            parameters to such a tree. By default arrays of two axes are the matrices.
        consistent_rms: that of `scale_by_shape`.

    >>> params = {"w": vf.numpy.eye(2), "b": vf.numpy.zeros(2)}
    >>> optimizer = optim.muon(learning_rate=0.02)
    >>> updates, state = optimizer.update(vf.tree.map(vf.numpy.ones_like, params), optimizer.init(params), params)
    >>> sorted(updates)
    ['b', 'w']

    Raises `ArgumentError` for an unknown name of coefficients.
    """
    if isinstance(ns_coeffs, str) and ns_coeffs not in NS_COEFFS:
        raise ArgumentError(f"muon: ns_coeffs must be one of {list(NS_COEFFS)} or numbers, got {ns_coeffs!r}")
    matrices = chain(
        scale_by_muon(
            NS_COEFFS[ns_coeffs] if isinstance(ns_coeffs, str) else ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov=nesterov,
            adaptive=adaptive,
            preconditioning=preconditioning,
            weight_dimension_numbers=muon_weight_dimension_numbers,
        ),
        scale_by_shape(muon_weight_dimension_numbers, consistent_rms),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    adam_rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    others = adamw(adam_rate, adam_b1, adam_b2, eps, adam_eps_root, mu_dtype, adam_weight_decay, nesterov=nesterov)

    def labels(params: Params) -> Any:
        if muon_weight_dimension_numbers is None:
            use_muon = [as_value(p).ndim == 2 for p in tree.leaves(params)]
        else:
            use_muon = [numbers is not None for numbers in _dimension_numbers(muon_weight_dimension_numbers, params)]
        return tree.structure(params).unflatten(["muon" if use else "adam" for use in use_muon])

    return partition({"muon": matrices, "adam": others}, labels)
