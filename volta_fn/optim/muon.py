"""Muon: momentum whose matrices are orthogonalised (Jordan et al., 2024), with AdamW for all that is no matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.adam import momentum_debiaser
from volta_fn.optim.adding import add_decayed_weights
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    is_function,
    stateless,
)
from volta_fn.optim.chaining import chain
from volta_fn.optim.leaves import count_zero, map_leaves, map_with_state, zeros_like
from volta_fn.optim.masking import partition
from volta_fn.optim.moment_optimizers import adamw
from volta_fn.optim.numerics import decayed, safe_increment
from volta_fn.optim.scaling import scale_by_learning_rate

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
    """Which axes of a weight are summed over by its layer and which are the layer's output; the others are batches of matrices."""

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


def _is_dimension_numbers(node: Any) -> bool:
    return isinstance(node, MuonDimensionNumbers)


class _Layout(NamedTuple):
    """How a weight becomes a stack of matrices: the order of its axes, their sizes in it, and the stack's shape."""

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    stack: tuple[int, int, int]


def _layout(x: Array, numbers: MuonDimensionNumbers) -> _Layout:
    def axes(given: Sequence[int] | int) -> tuple[int, ...]:
        return tuple(axis % x.ndim for axis in ((given,) if isinstance(given, int) else given))

    if x.ndim < 2:
        raise ShapeError(f"muon: only weights of two and more axes can be orthogonalised, got shape {x.shape}")
    rows, columns = axes(numbers.reduction_axis), axes(numbers.output_axis)
    if set(rows) & set(columns):
        raise ArgumentError(f"muon: reduction and output axes must be different ones, got {numbers} for shape {x.shape}")
    batch = tuple(axis for axis in range(x.ndim) if axis not in rows + columns)
    sizes = [math.prod(x.shape[axis] for axis in group) for group in (batch, rows, columns)]
    order = batch + rows + columns
    return _Layout(order, tuple(x.shape[axis] for axis in order), (sizes[0], sizes[1], sizes[2]))


def orthogonalize_via_newton_schulz(
    x: Any,
    ns_coeffs: Any = NS_COEFFS["standard"],
    ns_steps: int = 5,
    preconditioning: Preconditioning = "frobenius",
    eps: float = 1e-8,
    dimension_numbers: MuonDimensionNumbers | None = None,
) -> Array:
    """About the nearest orthogonal matrix: U Vᵀ of the singular value decomposition x = U S Vᵀ, with singular values near 1.

    Each step maps singular values by the odd polynomial ``a s + b s³ + c s⁵``.

    Args:
        x: a matrix, or an array whose matrices `dimension_numbers` tells.
        ns_coeffs: a, b and c, or several such triples, one for each step.
        ns_steps: the number of steps; of more triples than that the last ones are taken.
        preconditioning: what brings singular values below 1 first: the Frobenius or the spectral norm, or the scalings "aol" of rows (Prach
            and Lampert, 2022) and "schatten" (norm of order 4).
        eps: what norms are bounded by.

    >>> import volta_fn as vf
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
    layout = _layout(value, dimension_numbers)
    stack = vnp.transpose(value, layout.order).reshape(layout.stack)
    wide = layout.stack[1] <= layout.stack[2]
    matrices = _preconditioned(stack if wide else vnp.matrix_transpose(stack), preconditioning, eps)
    for a, b, c in _triples(ns_coeffs, ns_steps):
        gram = matrices @ _adjoint(matrices)
        matrices = a * matrices + (b * gram + c * (gram @ gram)) @ matrices
    stack = matrices if wide else vnp.matrix_transpose(matrices)
    inverse = sorted(range(value.ndim), key=layout.order.__getitem__)
    return vnp.transpose(stack.reshape(layout.sizes), inverse)


def _adjoint(x: Array) -> Array:
    return vnp.conj(vnp.matrix_transpose(x))


def _triples(ns_coeffs: Any, ns_steps: int) -> list[Any]:
    """The coefficients of each step: of several triples the last ones."""
    shape = np.shape(ns_coeffs)
    if len(shape) not in (1, 2) or shape[-1] != 3:
        raise ShapeError(f"Newton-Schulz coefficients must have shape (3,) or (n, 3), got {shape}")
    if len(shape) == 2 and shape[0] < ns_steps:
        raise ArgumentError(f"Newton-Schulz: {shape[0]} triples of coefficients are not enough for {ns_steps} steps")
    return [ns_coeffs] * ns_steps if len(shape) == 1 else list(ns_coeffs)[shape[0] - ns_steps :]


def _preconditioned(x: Array, how: Preconditioning, eps: float) -> Array:
    """A stack of matrices with singular values of at most about 1."""
    if how == "frobenius":
        return x / (vnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + eps)
    if how == "spectral":
        return x / (vnp.linalg.norm(x, ord=2, axis=(-2, -1), keepdims=True) + eps)
    gram = x @ _adjoint(x)
    if how == "aol":
        return x / vnp.sqrt(vnp.maximum(vnp.sum(vnp.abs(gram), axis=-1, keepdims=True), eps))
    if how == "schatten":
        return x / vnp.sqrt(vnp.maximum(vnp.linalg.norm(gram, axis=(-2, -1), keepdims=True), eps))
    raise ArgumentError(f"Newton-Schulz: preconditioning must be 'frobenius', 'spectral', 'aol' or 'schatten', got {how!r}")


class MuonState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def _resolved(weight_dimension_numbers: Any, updates: Updates) -> list[Any]:
    """The dimension numbers for each leaf of the updates, None where there are none."""
    numbers = weight_dimension_numbers
    if is_function(numbers):
        numbers = numbers(updates)
    if numbers is None:
        return [None] * len(tree.leaves(updates))
    flat, treedef = tree.flatten(numbers, is_leaf=lambda node: node is None or _is_dimension_numbers(node))
    parts = tree.flatten_up_to(treedef, updates, "muon's dimension numbers and the updates")
    return [number for number, part in zip(flat, parts, strict=True) for _ in tree.leaves(part)]


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
    """The orthogonalised momentum of `muon`, for matrices and what `weight_dimension_numbers` makes matrices of.

    With `adaptive` the update is scaled by its inner product with the momentum.
    """

    def init(params: Params) -> MuonState:
        return MuonState(count_zero(), zeros_like(params, mu_dtype))

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        count = safe_increment(state.count)
        corrected = momentum_debiaser(beta, count, nesterov)
        numbers = iter(_resolved(weight_dimension_numbers, updates))

        def rule(g: Array, m: Array) -> tuple[Array, Array]:
            m = decayed(beta, g, m)
            m_hat = corrected(m, g)
            step = orthogonalize_via_newton_schulz(m_hat, ns_coeffs, ns_steps, preconditioning, eps, next(numbers))
            return (vnp.sum(vnp.conj(m_hat) * step) * step if adaptive else step), m

        updates, mu = map_with_state(rule, updates, state.mu)
        return updates, MuonState(count, mu)

    return GradientTransformationExtraArgs(init, update)


def scale_by_shape(weight_dimension_numbers: Any = None, consistent_rms: Any = None) -> GradientTransformation:
    """Matrices times ``sqrt(max(1, outputs / inputs))``, or times ``sqrt(max(inputs, outputs)) * consistent_rms`` if that is given."""

    def scaled(u: Array, numbers: MuonDimensionNumbers) -> Array:
        _, inputs, outputs = _layout(u, numbers).stack
        if consistent_rms is None:
            return math.sqrt(max(1, outputs / max(inputs, 1))) * u
        return math.sqrt(max(inputs, outputs)) * consistent_rms * u

    def apply(updates: Updates, params: Params | None) -> Updates:
        numbers = iter(_resolved(weight_dimension_numbers, updates))
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
    """Muon for matrices, AdamW (with Nesterov's momentum if `nesterov`) for all other parameters.

    Args:
        learning_rate, weight_decay, weight_decay_mask: as in `adamw`, for matrices; `adam_learning_rate` (by default the same) and
            `adam_weight_decay` for the others, with `adam_b1`, `adam_b2`, `adam_eps_root`.
        ns_coeffs: the coefficients of `orthogonalize_via_newton_schulz`, or "standard" or "dion".
        ns_steps, preconditioning, eps: as there; `beta`, `nesterov`, `adaptive`, `mu_dtype` as in `scale_by_muon`.
        muon_weight_dimension_numbers: a tree of `MuonDimensionNumbers`, with None for what AdamW is to optimise, or a function from
            parameters to one. By default arrays of two axes are the matrices.
        consistent_rms: as in `scale_by_shape`.

    >>> import volta_fn as vf
    >>> from volta_fn import optim
    >>> params = {"w": vf.numpy.eye(2), "b": vf.numpy.zeros(2)}
    >>> optimizer = optim.muon(learning_rate=0.02)
    >>> updates, state = optimizer.update(vf.tree.map(vf.numpy.ones_like, params), optimizer.init(params), params)
    >>> sorted(updates)
    ['b', 'w']

    Raises `ArgumentError` for an unknown name of coefficients.
    """
    if isinstance(ns_coeffs, str):
        if ns_coeffs not in NS_COEFFS:
            raise ArgumentError(f"muon: ns_coeffs must be one of {list(NS_COEFFS)} or numbers, got {ns_coeffs!r}")
        ns_coeffs = NS_COEFFS[ns_coeffs]

    def numbers_of(params: Params) -> list[Any]:
        if muon_weight_dimension_numbers is None:
            return [MuonDimensionNumbers() if as_value(p).ndim == 2 else None for p in tree.leaves(params)]
        return _resolved(muon_weight_dimension_numbers, params)

    def labels(params: Params) -> Any:
        return tree.structure(params).unflatten(["adam" if number is None else "muon" for number in numbers_of(params)])

    matrices = chain(
        scale_by_muon(
            ns_coeffs,
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
    others = adamw(
        learning_rate if adam_learning_rate is None else adam_learning_rate,
        adam_b1,
        adam_b2,
        eps,
        adam_eps_root,
        mu_dtype,
        adam_weight_decay,
        nesterov=nesterov,
    )
    return partition({"muon": matrices, "adam": others}, labels)
