"""Bounds on updates: on elements, and on norms of units, leaves or all leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim.base import GradientTransformation, leaf_rule, leaf_rule_with_params, stateless
from volta_fn.optim.numerics import abs_sq, global_norm
from volta_fn.optim.tree_rules import factor, scaled_by

__all__ = ["adaptive_grad_clip", "clip", "clip_by_block_norm", "clip_by_block_rms", "clip_by_global_norm", "unitwise_clip", "unitwise_norm"]


def clip(max_delta: Any) -> GradientTransformation:
    """Clip every element to [-max_delta, max_delta].

    >>> tx = vf.optim.clip(1.0)
    >>> tx.update(vf.numpy.array([-3.0, 0.5]), tx.init(None))[0]
    Array([-1. ,  0.5], dtype=float32)
    """
    return leaf_rule(lambda u: vnp.clip(u, -factor(max_delta, u), factor(max_delta, u)))


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Scale updates down to a global norm of at most `max_norm`.

    See Pascanu et al. (2013).

    >>> tx = vf.optim.clip_by_global_norm(1.0)
    >>> tx.update(vf.numpy.array([3.0, 4.0]), tx.init(None))[0]
    Array([0.6, 0.8], dtype=float32)
    """
    return stateless(lambda updates, params: scaled_by(_ratio(global_norm(updates), max_norm), updates))


def clip_by_block_norm(max_norm: Any) -> GradientTransformation:
    """Scale each leaf down to a norm of at most `max_norm`."""
    return leaf_rule(lambda u: u * _ratio(vnp.sqrt(vnp.sum(abs_sq(u))), max_norm))


def clip_by_block_rms(threshold: Any) -> GradientTransformation:
    """Limit each leaf's root mean square to `threshold` (Shazeer and Stern, 2018)."""

    def rule(u: Array) -> Array:
        rms = vnp.sqrt(vnp.mean(abs_sq(u)))
        return u / vnp.where(rms <= threshold, vnp.ones_like(rms), rms / threshold)

    return leaf_rule(lambda u: rule(u) if u.size else u)


def _ratio(norm: Array, max_norm: Any) -> Array:
    """Return the factor that bounds a norm; 1 for a norm of zero, NaN for one of NaN."""
    return vnp.where(norm <= max_norm, vnp.ones_like(norm), max_norm / norm)


def unitwise_norm(x: Array, axis: int | Sequence[int] | None = None) -> Array:
    """Return the norms of a weight's units (output features), broadcast to its shape.

    `axis` lists the axes to sum over. By default vectors and scalars are one unit, and the last axis of arrays with two to five axes
    counts the units; arrays of three axes are stacks of matrices.

    Raises `ShapeError` for more axes.
    """
    return vnp.broadcast_to(vnp.sqrt(vnp.sum(abs_sq(x), axis=_unit_axes(x) if axis is None else axis, keepdims=True)), x.shape)


def _unit_axes(x: Array) -> tuple[int, ...]:
    if sum(size != 1 for size in x.shape) <= 1:
        return tuple(range(x.ndim))
    if x.ndim in (2, 3):
        return (0,)
    if x.ndim in (4, 5):
        return tuple(range(x.ndim - 1))
    raise ShapeError(f"unitwise_norm: which axes are inputs is known up to five axes, got shape {x.shape}; pass axis=")


def unitwise_clip(g_norm: Array, max_norm: Array, grad: Array, div_eps: float = 1e-6) -> Array:
    """Limit the norms of a gradient's units; all three arrays have one shape."""
    if not g_norm.shape == max_norm.shape == grad.shape:
        raise ShapeError(f"unitwise_clip: norms and gradient must have one shape, got {g_norm.shape}, {max_norm.shape} and {grad.shape}")
    return vnp.where(g_norm < max_norm, grad, grad * (max_norm / vnp.maximum(g_norm, div_eps)))


def adaptive_grad_clip(clipping: Any, eps: Any = 1e-3, axis: int | Sequence[int] | None = None) -> GradientTransformation:
    """Limit each unit's gradient to `clipping` times the norm of its weights.

    See Brock et al. (2021). Norms of weights count as at least `eps`; `axis` is that of `unitwise_norm`. Needs the parameters.
    """
    if isinstance(clipping, (int, float)) and clipping < 0:
        raise ArgumentError(f"adaptive_grad_clip: clipping must not be negative, got {clipping}")

    def rule(u: Array, p: Array) -> Array:
        return unitwise_clip(unitwise_norm(u, axis), clipping * vnp.maximum(unitwise_norm(p, axis), eps), u)

    return leaf_rule_with_params("adaptive_grad_clip", rule)
