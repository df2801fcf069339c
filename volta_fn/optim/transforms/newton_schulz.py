"""Orthogonalisation of weights by the Newton-Schulz iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError

__all__ = ["MuonDimensionNumbers", "orthogonalize_via_newton_schulz"]

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
    for a, b, c in _triples(ns_coeffs, ns_steps):
        gram = matrices @ _adjoint(matrices)
        matrices = a * matrices + (b * gram + c * (gram @ gram)) @ matrices
    stack = matrices if wide else vnp.matrix_transpose(matrices)
    inverse = sorted(range(value.ndim), key=layout.order.__getitem__)
    return vnp.transpose(stack.reshape(layout.sizes), inverse)


def _adjoint(x: Array) -> Array:
    return vnp.conj(vnp.matrix_transpose(x))


def _triples(ns_coeffs: Any, ns_steps: int) -> list[Any]:
    """Return the coefficients of each step: of several triples the last ones."""
    shape = np.shape(ns_coeffs)
    if len(shape) not in (1, 2) or shape[-1] != 3:
        raise ShapeError(f"Newton-Schulz coefficients must have shape (3,) or (n, 3), got {shape}")
    if len(shape) == 2 and shape[0] < ns_steps:
        raise ArgumentError(f"Newton-Schulz: {shape[0]} triples of coefficients are not enough for {ns_steps} steps")
    return [ns_coeffs] * ns_steps if len(shape) == 1 else list(ns_coeffs)[shape[0] - ns_steps :]


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
