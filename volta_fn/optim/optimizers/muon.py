"""Muon (Jordan et al., 2024) for matrices, AdamW for other parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    Params,
    ScalarOrSchedule,
    Updates,
    is_function,
    stateless,
)
from volta_fn.optim.numerics import decayed, safe_increment
from volta_fn.optim.optimizers.adam import adamw
from volta_fn.optim.transforms.newton_schulz import (
    NS_COEFFS,
    MuonDimensionNumbers,
    Preconditioning,
    layout_of,
    orthogonalize_via_newton_schulz,
)
from volta_fn.optim.transforms.scale_by_adam import momentum_debiaser
from volta_fn.optim.transforms.scaling import scale_by_learning_rate
from volta_fn.optim.transforms.weight_decay_and_noise import add_decayed_weights
from volta_fn.optim.tree_rules import count_zero, map_leaves, map_with_state, zeros_like
from volta_fn.optim.wrappers.chain import chain
from volta_fn.optim.wrappers.masking import partition

__all__ = ["MuonState", "muon", "scale_by_muon", "scale_by_shape"]


class MuonState(NamedTuple):
    """The number of steps (int32) and moving averages of gradients."""

    count: Counter
    mu: Updates


def _dimension_numbers(given: Any, updates: Updates) -> list[Any]:
    """Return the dimension numbers of each leaf of the updates, or None."""
    numbers = given(updates) if is_function(given) else given
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
