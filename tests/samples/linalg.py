"""Samples of linear algebra.

Where factors are determined only up to signs, what they are made of is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import Arg, Sample, positive_definite, uniform, well_conditioned
from volta_fn import lax
from volta_fn.dtypes import complex_dtype, real_dtype
from volta_fn.primitives.linalg.solvers import adjoint, diagonal, matmul, qr_without_q, tril

DTYPES = ("float32", "float64", "complex64", "complex128")


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _triangular(flags: dict[str, bool]) -> Sample:
    def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        op = np.tril(a) if flags.get("lower") else np.triu(a)
        op = np.where(np.eye(a.shape[-1]), 1, op) if flags.get("unit_diagonal") else op
        op = op.conj() if flags.get("conjugate_a") else op
        op = op.swapaxes(-1, -2) if flags.get("transpose_a") else op
        return np.linalg.solve(op, b) if flags.get("left_side") else _adjoint(np.linalg.solve(_adjoint(op), _adjoint(b)))

    args = Arg((2, 3, 3), well_conditioned()), Arg((2, 3, 2) if flags.get("left_side") else (2, 2, 3))
    label = " ".join(flags) or "plain"
    function = lambda a, b: lax.linalg.triangular_solve(a, b, **flags)
    dtypes = DTYPES if len(flags) == 4 else ("float64", "complex128")
    return Sample("triangular_solve", function, args, reference, dtypes=dtypes, linear=(1,), label=label)


def _lu_product(x: np.ndarray) -> np.ndarray:
    """Factor a matrix that needs no exchange of rows into L and U."""
    out = x.copy()
    for i in range(min(x.shape)):
        out[i + 1 :, i] /= out[i, i]
        out[i + 1 :, i + 1 :] -= np.outer(out[i + 1 :, i], out[i, i + 1 :])
    return out


def _factors(*shape: int) -> Sample:
    """Return Q and R, determined by the phases of R's diagonal."""
    full = shape[-2] < shape[-1]
    return Sample(
        "qr", lambda x: lax.linalg.qr(x, full_matrices=full), (Arg(shape, well_conditioned()),),
        lambda x: tuple(np.linalg.qr(x, "complete" if full else "reduced")),
        dtypes=DTYPES if len(shape) == 3 else ("float64", "complex128"), label="x".join(map(str, shape)),
    )  # fmt: skip


def _upper_factor(*shape: int) -> Sample:
    """Return R alone."""
    arg = Arg(shape, well_conditioned())
    return Sample("qr", qr_without_q, (arg,), lambda x: np.linalg.qr(x, "r"), dtypes=("float64", "complex128"), label=f"R of {shape}")


def _svd_invariants(x):
    """Return the singular values, and the vectors' product, free of their phases."""
    u, s, vt = lax.linalg.svd(x, full_matrices=False)
    return s, matmul(u, vt)


def _svd_reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return s, u @ vt


def _eig_invariants(x):
    """Return the eigenvalues, and the eigenvectors without their phases."""
    w, v = lax.linalg.eig(x, compute_left_eigenvectors=False)
    return w, v * lax.conj(v[:1])


def _eig_reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, v = np.linalg.eig(x)
    return w, v * v[:1].conj()


def _eigh_invariants(x):
    """Return the eigenvalues, and the eigenvectors' matrix with eigenvalues 1, 2, …."""
    v, w = lax.linalg.eigh(x)
    return w, matmul(v * np.arange(1, x.shape[-1] + 1).astype(v.dtype), adjoint(v))


def _eigh_reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, v = np.linalg.eigh(x)
    return w, (v * np.arange(1, x.shape[-1] + 1)) @ _adjoint(v)


def _stacked(one: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of stacks, of one of their elements."""

    def reference(*stacks: np.ndarray) -> Any:
        results = [one(*elements) for elements in zip(*stacks, strict=True)]
        return tuple(map(np.stack, zip(*results, strict=True))) if isinstance(results[0], tuple) else np.stack(results)

    return reference


def _hessenberg(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a matrix by reflections that make columns multiples of unit vectors."""
    out, taus = x.copy(), np.zeros(len(x) - 1, x.dtype)
    for i in range(len(x) - 1):
        alpha, rest = out[i + 1, i], out[i + 2 :, i]
        if np.linalg.norm(rest) == 0 and np.imag(alpha) == 0:
            continue
        beta = -np.copysign(np.linalg.norm(out[i + 1 :, i]), alpha.real)
        v = np.concatenate([[1], rest / (alpha - beta)])
        taus[i] = (beta - alpha) / beta
        reflection = np.eye(len(v)) - taus[i] * np.outer(v, v.conj())
        out[i + 1 :, i:] = reflection.conj().T @ out[i + 1 :, i:]
        out[:, i + 1 :] = out[:, i + 1 :] @ reflection
        out[i + 2 :, i] = v[1:]
    return out, taus


def _schur_invariants(x):
    """Return what is determined: zeros below the form's blocks, and the matrix."""
    form, q = lax.linalg.schur(x)
    return tril(form, -1 if x.dtype.kind == "c" else -2), matmul(matmul(q, form), adjoint(q))


def _tridiagonal(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the diagonals of a Hermitian matrix's Hessenberg form: it is tridiagonal."""
    form, _ = _hessenberg(x)
    return np.diagonal(form).real, np.diagonal(form, -1).real


def _product(a: np.ndarray, taus: np.ndarray) -> np.ndarray:
    """Multiply reflections."""
    m, n = a.shape
    out = np.eye(m, dtype=a.dtype)
    for i, tau in enumerate(taus):
        v = np.concatenate([np.zeros(i), [1], a[i + 1 :, i]])
        out = out @ (np.eye(m) - tau * np.outer(v, v.conj()))
    return out[:, :n]


def _tridiagonal_reference(dl: np.ndarray, d: np.ndarray, du: np.ndarray, b: np.ndarray) -> np.ndarray:
    matrices = [np.diag(y) + np.diag(x[1:], -1) + np.diag(z[:-1], 1) for x, y, z in zip(dl, d, du, strict=True)]
    return np.linalg.solve(np.stack(matrices), b)


SAMPLES = [
    _triangular({}),
    _triangular({"lower": True, "left_side": True, "transpose_a": True, "conjugate_a": True}),
    _triangular({"left_side": True, "unit_diagonal": True}),
    _triangular({"lower": True, "conjugate_a": True}),
    Sample("cholesky", lambda x: lax.linalg.cholesky(x), (Arg((2, 3, 3), positive_definite()),), np.linalg.cholesky, dtypes=DTYPES),
    Sample("cholesky", lambda x: lax.linalg.cholesky(x), (Arg((0, 0)),), lambda x: x, label="empty"),
    Sample(
        "lu", lambda x: lax.linalg.lu(x), (Arg((3, 3), well_conditioned()),),
        lambda x: (_lu_product(x), np.arange(3), np.arange(3)), dtypes=DTYPES,
        result_dtype=lambda dtype: (dtype, np.dtype(np.int32), np.dtype(np.int32)),
    ),
    Sample("lu", lambda x: lax.linalg.lu(x)[0], (Arg((4, 2), well_conditioned()),), _lu_product, dtypes=("float64",), label="tall"),
    Sample("lu", lambda x: lax.linalg.lu(x)[0], (Arg((2, 4), well_conditioned()),), _lu_product, dtypes=("float64",), label="wide"),
    _factors(2, 3, 3),
    _factors(4, 2),
    _factors(2, 4),
    _upper_factor(2, 4, 3),
    _upper_factor(2, 4),
    Sample(
        "eigh", _eigh_invariants, (Arg((2, 3, 3), positive_definite()),), _eigh_reference,
        dtypes=DTYPES, result_dtype=lambda dtype: (real_dtype(dtype), dtype),
    ),
    *[
        Sample(
            "svd", _svd_invariants, (Arg(shape, well_conditioned()),), _svd_reference,
            dtypes=DTYPES if len(shape) == 3 else ("float64", "complex128"), result_dtype=lambda dtype: (real_dtype(dtype), dtype),
            label="x".join(map(str, shape)),
            derivative_tolerance=2e-8, why="singular values lie close, so higher derivatives, and the stencil's error, are large",
        )
        for shape in ((2, 3, 3), (4, 2), (2, 4))
    ],
    Sample(
        "svd", lambda x: lax.linalg.svd(x, compute_uv=False), (Arg((3, 2), well_conditioned()),),
        lambda x: np.linalg.svd(x, compute_uv=False), dtypes=DTYPES, result_dtype=real_dtype, label="values",
    ),
    Sample("svd", lambda x: lax.linalg.svd(x), (Arg((0, 2)),), lambda x: tuple(np.linalg.svd(x)), differentiable=(), label="empty"),
    Sample(
        "eig", _eig_invariants, (Arg((3, 3), well_conditioned()),), _eig_reference, dtypes=DTYPES, result_dtype=complex_dtype,
    ),
    Sample(
        "eig", lambda x: lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0],
        (Arg((3, 3), well_conditioned()),), np.linalg.eigvals, dtypes=DTYPES, result_dtype=complex_dtype, label="values",
    ),
    Sample(
        "hessenberg", lambda x: lax.linalg.hessenberg(x), (Arg((2, 3, 3), well_conditioned()),), _stacked(_hessenberg),
        dtypes=DTYPES, differentiable=(),
    ),
    Sample(
        "schur", _schur_invariants, (Arg((2, 3, 3), well_conditioned()),), lambda x: (np.zeros_like(x), x),
        dtypes=DTYPES, differentiable=(),
    ),
    Sample(
        "schur", lambda x: diagonal(lax.linalg.schur(x, compute_schur_vectors=False)).sum(), (Arg((3, 3), well_conditioned()),),
        np.trace, dtypes=DTYPES, differentiable=(), label="trace",
    ),
    Sample(
        "tridiagonal", lambda x: lax.linalg.tridiagonal(x)[1:3], (Arg((2, 3, 3), positive_definite()),), _stacked(_tridiagonal),
        dtypes=DTYPES, result_dtype=lambda dtype: (real_dtype(dtype),) * 2, differentiable=(),
    ),
    Sample(
        "householder_product", lambda a, taus: lax.linalg.householder_product(a, taus), (Arg((2, 4, 3)), Arg((2, 2))), _stacked(_product),
        dtypes=DTYPES, differentiable=(),
    ),
    Sample(
        "tridiagonal_solve", lambda dl, d, du, b: lax.linalg.tridiagonal_solve(dl, d, du, b),
        (Arg((2, 4)), Arg((2, 4), uniform(3, 5)), Arg((2, 4)), Arg((2, 4, 3))), _tridiagonal_reference, dtypes=DTYPES, linear=(3,),
    ),
]  # fmt: skip
