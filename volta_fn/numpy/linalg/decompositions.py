"""Cholesky, QR, eigenvalue and singular value decompositions."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.numpy.linalg.operands import matrices
from volta_fn.numpy.linalg.reflections import packed_qr
from volta_fn.numpy.shapes import matrix_transpose
from volta_fn.primitives.elementwise.complex_components import conj
from volta_fn.primitives.linalg.factorization import qr_without_q


class EigResult(NamedTuple):
    """The results of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """The results of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The results of `qr`."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """The results of `svd`."""

    U: Array
    S: Array
    Vh: Array


def cholesky(a: Any, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular L with L Lᴴ = a (`upper`: U with Uᴴ U = a).

    The factor is NaN where a Hermitian matrix is not positive definite. With `symmetrize_input` the matrices are averaged with their
    adjoints first, otherwise their lower triangles are read.

    >>> jnp.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]]))
    Array([[2., 0.],
           [1., 2.]], dtype=float32)
    """
    factor = lax.linalg.cholesky(matrices("cholesky", "a", a, square=True), symmetrize_input=symmetrize_input)
    return conj(matrix_transpose(factor)) if upper else factor


def qr(a: Any, mode: str = "reduced") -> Any:
    """Factor matrices (*batch, M, N) into orthonormal columns Q and upper triangle R.

    Q is (M, K) and R (K, N), where K is min(M, N) in mode "reduced" and M in mode "complete"; mode "r" returns R of "reduced" alone,
    and mode "raw" LAPACK's packed form: h (*batch, N, M) and tau (*batch, min(M, N)), which `lax.linalg.ormqr` takes.

    >>> q, r = jnp.linalg.qr(jnp.ones((3, 2)))
    >>> bool(jnp.allclose(q @ r, 1.0, atol=1e-6))
    True
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError(f"qr: mode must be 'reduced', 'complete', 'r' or 'raw', got {mode!r}")
    matrix = matrices("qr", "a", a)
    if mode == "raw":
        return QRResult(*packed_qr(matrix))
    return qr_without_q(matrix) if mode == "r" else QRResult(*lax.linalg.qr(matrix, full_matrices=mode == "complete"))


def eigh(a: Any, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Return ascending eigenvalues and orthonormal eigenvectors of Hermitian matrices.

    The eigenvectors are columns. With `symmetrize_input` the matrices are averaged with their adjoints first, otherwise the triangle
    `UPLO` ("L", the default, or "U") is read. For equal eigenvalues the vectors' derivatives are zero.

    >>> jnp.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.round(3)
    Array([1., 3.], dtype=float32)
    """
    if UPLO not in (None, "L", "U"):
        raise ArgumentError(f"eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    value = matrices("eigh", "a", a, square=True)
    vectors, values = lax.linalg.eigh(value, lower=UPLO != "U", symmetrize_input=symmetrize_input)
    return EighResult(values, vectors)


def eigvalsh(a: Any, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """Return the ascending eigenvalues of Hermitian matrices; arguments as of `eigh`.

    >>> jnp.linalg.eigvalsh(jnp.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    Array([1., 3.], dtype=float32)
    """
    return eigh(a, UPLO, symmetrize_input).eigenvalues


def eig(a: Any) -> EigResult:
    """Return complex eigenvalues, unsorted, and unit eigenvectors (columns).

    >>> jnp.linalg.eig(jnp.array([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    Array([0.+1.j, 0.-1.j], dtype=complex64)
    """
    values, vectors = lax.linalg.eig(matrices("eig", "a", a, square=True), compute_left_eigenvectors=False)
    return EigResult(values, vectors)


def eigvals(a: Any) -> Array:
    """Return the complex eigenvalues of square matrices, in no particular order.

    >>> jnp.linalg.eigvals(jnp.array([[2.0, 0.0], [0.0, 3.0]])).real.round(4)
    Array([2., 3.], dtype=float32)
    """
    value = matrices("eigvals", "a", a, square=True)
    return lax.linalg.eig(value, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False, subset_by_index: tuple[int, int] | None = None
) -> Any:
    """Decompose matrices (*batch, M, N) into U diag(S) Vh; only S if not `compute_uv`.

    S descends. U and Vh are square if `full_matrices`, else they have min(M, N) columns and rows. `hermitian` has no effect. For equal
    singular values the vectors' derivatives are zero where they are not determined.

    >>> jnp.linalg.svd(jnp.array([[3.0, 0.0], [0.0, -4.0]])).S
    Array([4., 3.], dtype=float32)
    """
    if subset_by_index is not None:
        raise ArgumentError("svd: subset_by_index is not supported; slice the result instead")
    value = matrices("svd", "a", a)
    if not compute_uv:
        return lax.linalg.svd(value, compute_uv=False)
    return SVDResult(*lax.linalg.svd(value, full_matrices=full_matrices))


def svdvals(x: Any, /) -> Array:
    """Return the singular values, descending.

    >>> jnp.linalg.svdvals(jnp.array([[3.0, 0.0], [0.0, 4.0]])).round(4)
    Array([4., 3.], dtype=float32)
    """
    return lax.linalg.svd(matrices("svdvals", "x", x), compute_uv=False)
