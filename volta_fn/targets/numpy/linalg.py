"""Linear algebra in NumPy and by SciPy, and Fourier transforms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from itertools import product as cartesian
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.errors import MissingDependencyError
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.threads import run_together, thread_count

# The contraction kernel: `dot_general` as one (stacked) matrix product.
#
# BLAS computes it wherever the dtype lets it. The axes of an operand fall into *batch* axes (in both operands and in the result),
# *contracted* axes (summed over) and *free* axes (in the result only). Transposed views and reshapes bring the operands to `[batch..., M,
# K]` and `[batch..., K, N]`; a reshape copies only when axes that have to merge are not adjacent in memory.
#
# A *product* multiplies such stacks in a given *working dtype*: the result's dtype itself, except that float16 and bfloat16 work in
# float32 and are rounded once at the end. Integers multiply exactly and wrap around; the product of booleans is "any of (a and b)".

Axes = tuple[int, ...]
DotDimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]
Product = Callable[..., np.ndarray]  # of two arrays, and perhaps `out`

_HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_FLOAT32 = np.dtype(np.float32)
_SINGLE = (_FLOAT32, np.dtype(np.complex64))
_LIMB_BITS = 16
_BLOCK_TERMS = 1 << 12  # of long sums, whose rounding errors BLAS would add up
_EXACT_TERMS = 1 << 20  # products of two 16-bit limbs, which sum exactly in a float64: 2^20 * 2^32 < 2^53


def working_dtype(dtype: np.dtype) -> np.dtype:
    """Return float32 for float16 and bfloat16, else `dtype`."""
    return _FLOAT32 if dtype in _HALF else dtype


def product_for(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> Product:
    """Return the function that multiplies stacks of matrices into the working dtype.

    The operands have dtypes `lhs` and `rhs`, the result `out`. It is `np.matmul` itself if that takes no conversion; only then it has a
    parameter ``out``.
    """
    if out == np.bool_:
        return _bool_product
    if out.kind in "iu":
        return lambda a, b: _integer_product(a, b, out)
    working = working_dtype(out)
    if working.kind == "c":
        return lambda a, b: _complex_product(a.astype(working, copy=False), b.astype(working, copy=False))
    if lhs == rhs == working:
        return np.matmul
    return lambda a, b: np.matmul(a.astype(working, copy=False), b.astype(working, copy=False))


def _bool_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return where any term `a and b` holds, counted by BLAS."""
    # A float32 count may saturate, but never returns to zero.
    return np.matmul(a.astype(np.float32), b.astype(np.float32)) > 0


def _complex_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product; what is not finite is summed again without BLAS."""
    # BLAS multiplies sums by 1 + 0i, which makes infinite components NaN: which ones depends on the routine, and so on the shapes.
    result = np.asarray(np.matmul(a, b))
    wrong = ~np.isfinite(result)
    if wrong.any():
        result[wrong] = np.einsum("...ij,...jk->...ik", a, b)[wrong]
    return result


def _integer_product(a: np.ndarray, b: np.ndarray, out: np.dtype) -> np.ndarray:
    """Return the product modulo 2^bits of `out`."""
    # It is summed from exact float64 products of 16-bit limbs, as BLAS has no integers and NumPy's own loop is slow.
    total = np.zeros((), np.uint64)
    for start in range(0, a.shape[-1], _EXACT_TERMS):
        terms = slice(start, start + _EXACT_TERMS)
        left, right = _limbs(a[..., terms]), _limbs(b[..., terms, :])
        for (i, x), (j, y) in cartesian(enumerate(left), enumerate(right)):
            shift = _LIMB_BITS * (i + j)
            if shift < out.itemsize * 8:
                total = total + (np.matmul(x, y).astype(np.int64).view(np.uint64) << np.uint64(shift))
    return np.broadcast_to(total, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])).astype(out)


def _limbs(x: np.ndarray) -> list[np.ndarray]:
    """Return float64 arrays whose sum, limb i weighted by 2^(16 i), is `x`.

    Every limb but the last is unsigned.
    """
    count = max(1, x.itemsize * 8 // _LIMB_BITS)
    low = [(x >> x.dtype.type(_LIMB_BITS * i)) & x.dtype.type(0xFFFF) for i in range(count - 1)]
    return [limb.astype(np.float64) for limb in [*low, x >> x.dtype.type(_LIMB_BITS * (count - 1))]]


def _outer_product_for(lhs: np.dtype, rhs: np.dtype, out: np.dtype) -> Product:
    """Return the product where nothing is contracted (K = 1): a multiplication."""
    working = working_dtype(out)
    if lhs == rhs == working:
        return np.multiply
    return lambda a, b: np.multiply(a.astype(working, copy=False), b.astype(working, copy=False))


@lru_cache(maxsize=4096)
def dot_general_plan(
    lhs_ndim: int,
    rhs_ndim: int,
    dimension_numbers: DotDimensionNumbers,
    lhs_dtype: np.dtype,
    rhs_dtype: np.dtype,
    preferred_element_type: np.dtype | None = None,
    has_scalar: bool = False,
    is_long: bool = False,
) -> Product:
    """Return `dot_general` for given ranks and dtypes, as a function of the operands.

    `has_scalar` says that an operand may be a matrix of one element, `is_long` that elements are sums of many terms.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    out_dtype = np.promote_types(lhs_dtype, rhs_dtype) if preferred_element_type is None else np.dtype(preferred_element_type)
    lhs_free = _rest(lhs_ndim, lhs_contract, lhs_batch)
    rhs_free = _rest(rhs_ndim, rhs_contract, rhs_batch)
    by_lhs_axis = sorted(range(len(lhs_contract)), key=lambda i: lhs_contract[i])  # the order of a sum is free: take the order in memory
    lhs_order = (*lhs_batch, *lhs_free, *(lhs_contract[i] for i in by_lhs_axis))
    rhs_order = (*rhs_batch, *(rhs_contract[i] for i in by_lhs_axis), *rhs_free)
    multiply = (product_for if lhs_contract else _outer_product_for)(lhs_dtype, rhs_dtype, out_dtype)
    if is_long and out_dtype.kind not in "biu":
        multiply = _product_by_blocks(multiply)
    if multiply is np.matmul and lhs_ndim == rhs_ndim == 2 and len(lhs_contract) == 1 and not lhs_batch and not has_scalar:
        multiply = np.dot  # the same product, half a microsecond sooner; but for one element of 0 it leaves out NaN
    if not isinstance(multiply, np.ufunc) and multiply is not np.dot:
        multiply = _rounding(multiply, out_dtype)
    if len(lhs_free) == len(lhs_contract) == len(rhs_free) == 1:
        return _matrices(multiply, _permutation(lhs_order), _permutation(rhs_order))
    return _merged(multiply, lhs_order, rhs_order, len(lhs_batch), len(lhs_free), len(lhs_contract))


def _is_long(lhs: Any, rhs: Any, dimension_numbers: DotDimensionNumbers) -> bool:
    """Return True where blocks bound the error of a product.

    Their sums take less memory than its operands.
    """
    (lhs_contract, _), (lhs_batch, _) = dimension_numbers
    terms, batch = prod([lhs.shape[axis] for axis in lhs_contract]), prod([lhs.shape[axis] for axis in lhs_batch])
    return terms >= 4 * _BLOCK_TERMS and lhs.size * rhs.size <= _BLOCK_TERMS * (terms * batch) ** 2


def _product_by_blocks(product: Product) -> Product:
    """Return a product that adds those of blocks of terms."""

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        blocks, rest = divmod(a.shape[-1], _BLOCK_TERMS)
        covered = a.shape[-1] - rest
        left = a[..., :covered].reshape(*a.shape[:-1], blocks, _BLOCK_TERMS).swapaxes(-2, -3)
        total = np.add.reduce(product(left, b[..., :covered, :].reshape(*b.shape[:-2], blocks, _BLOCK_TERMS, b.shape[-1])), axis=-3)
        return total + product(a[..., covered:], b[..., covered:, :]) if rest else total

    return multiply


def _rounding(product: Product, dtype: np.dtype) -> Product:
    """Return a product rounded to its dtype, with a parameter ``out``."""

    def multiply(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        result = product(lhs, rhs)
        if out is None:
            return result.astype(dtype, copy=False)
        out[...] = result
        return out

    return multiply


def _rest(ndim: int, *taken: Axes) -> Axes:
    return tuple(axis for axis in range(ndim) if not any(axis in axes for axes in taken))


def _permutation(order: Axes) -> Axes | None:
    """Return None for the identity, so that the common case makes no view."""
    return None if order == tuple(range(len(order))) else order


def _matrices(multiply: Product, lhs_order: Axes | None, rhs_order: Axes | None) -> Product:
    """Return the contraction of operands that are stacks of permuted matrices."""
    if lhs_order is None and rhs_order is None:
        return multiply
    if lhs_order is None:
        return lambda lhs, rhs, out=None: multiply(lhs, rhs.transpose(rhs_order), out=out)
    if rhs_order is None:
        return lambda lhs, rhs, out=None: multiply(lhs.transpose(lhs_order), rhs, out=out)
    return lambda lhs, rhs, out=None: multiply(lhs.transpose(lhs_order), rhs.transpose(rhs_order), out=out)


def _merged(multiply: Product, lhs_order: Axes, rhs_order: Axes, batch: int, free: int, contracted: int) -> Product:
    """Return the contraction of operands whose free and contracted axes are merged."""

    def contract(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        lhs, rhs = lhs.transpose(lhs_order), rhs.transpose(rhs_order)
        stack, rows, terms = lhs.shape[:batch], lhs.shape[batch : batch + free], lhs.shape[batch + free :]
        columns = rhs.shape[batch + contracted :]
        matrices = multiply(
            lhs.reshape(*stack, prod(rows), prod(terms)),
            rhs.reshape(*stack, prod(terms), prod(columns)),
            out=None if out is None else out.reshape(*stack, prod(rows), prod(columns)),
        )
        return matrices.reshape(stack + rows + columns)

    return contract


def dot_general(
    lhs: np.ndarray,
    rhs: np.ndarray,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None = None,
    precision: str | None = None,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Contract `lhs` with `rhs`.

    `dimension_numbers` is `((lhs_contract, rhs_contract), (lhs_batch, rhs_batch))`. The result has the batch axes, the free axes of
    `lhs`, then those of `rhs`; its dtype is `preferred_element_type`, or else the operands' own. A lower `precision` rounds nothing.
    """
    has_scalar = 1 in (lhs.size, rhs.size)
    is_long = _is_long(lhs, rhs, dimension_numbers)
    plan = dot_general_plan(lhs.ndim, rhs.ndim, dimension_numbers, lhs.dtype, rhs.dtype, preferred_element_type, has_scalar, is_long)
    return plan(lhs, rhs, out=out)


def typed_dot_general(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None,
    precision: str | None = None,
) -> Product:
    """Return the plan for operands of the given avals.

    Without looking it up, a small product costs little more than `np.matmul`.
    """
    has_scalar, is_long = 1 in (lhs.size, rhs.size), _is_long(lhs, rhs, dimension_numbers)
    return dot_general_plan(lhs.ndim, rhs.ndim, dimension_numbers, lhs.dtype, rhs.dtype, preferred_element_type, has_scalar, is_long)


# Fourier transforms by pocketfft, in the precision of their operands.
#
# SciPy's computes several signals with one vector instruction, and takes a third of the time of NumPy's, which serves without SciPy.

#: A batch of this many numbers is divided among the threads.
_LARGE = 1 << 18


def fft(x: np.ndarray, *, kind: str, length: int, axis: int, out: np.ndarray | None = None) -> np.ndarray:
    """Transform along an axis; for half spectra `length` is that of the full signal."""
    # The signals of a large batch are divided among the threads, which changes no digit.
    library = _scipy()
    if library is None:
        along = next((d for d, n in enumerate(x.shape) if d != axis % x.ndim and n >= 2), None) if x.size >= _LARGE else None
        threads = 1 if along is None else min(thread_count(), x.shape[along])
        if along is None or threads == 1:
            return _transform(x, kind, length, axis, out)
        if out is None:
            shape = [*x.shape]
            shape[axis] = length // 2 + 1 if kind == "RFFT" else length
            out = np.empty(shape, x.real.dtype if kind == "IRFFT" else np.result_type(x.dtype, np.complex64))
        bounds = [x.shape[along] * i // threads for i in range(threads + 1)]
        batches = [(slice(None),) * along + (slice(low, high),) for low, high in pairwise(bounds)]
        run_together([partial(_transform, x[batch], kind, length, axis, out[batch]) for batch in batches])
        return out
    transform, workers = getattr(library, kind.lower()), thread_count() if x.size >= _LARGE else 1
    if out is None:
        return transform(x, length, axis, workers=workers)
    if x.dtype != out.dtype:
        out[...] = transform(x, length, axis, workers=workers)
        return out
    out[...] = x  # to be transformed in place, since new memory would take longer than this copy
    spectrum = transform(out, length, axis, overwrite_x=True, workers=workers)
    if not np.may_share_memory(spectrum, out):
        out[...] = spectrum
    return out


@functools.cache
def _scipy() -> Any:
    return load("scipy.fft") if is_installed("scipy") else None


def _transform(x: np.ndarray, kind: str, length: int, axis: int, out: np.ndarray | None) -> np.ndarray:
    """Transform in this thread."""
    # NumPy (2.4) transforms single precision in double, with conversions, unless it scales the result, which it does by a number of that
    # precision. So it divides by the length here, and the result is multiplied again: by a power of two no digit changes.
    transform: Callable[..., np.ndarray] = getattr(np.fft, kind.lower())  # not before: NumPy loads `fft` on first use
    if kind in ("IFFT", "IRFFT") or x.dtype.char in "dD":
        return transform(x, length, axis, out=out)
    spectrum = transform(x, length, axis, "forward", out=out)
    spectrum *= length
    return spectrum


# Linear algebra that NumPy lacks, by SciPy's LAPACK and BLAS, matrix by matrix.

Result = tuple[np.ndarray, ...]


@functools.cache
def has_scipy() -> bool:
    """Return True if SciPy is installed."""
    return is_installed("scipy")


def functions(names: Sequence[str], dtype: np.dtype) -> list[Any]:
    """Return LAPACK's functions for a dtype.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    if not has_scipy():
        raise MissingDependencyError(f"{names[0]} computes on the host by the package scipy; install it: pip install scipy")
    return [_function(name, dtype) for name in names]


@functools.cache
def _function(name: str, dtype: np.dtype) -> Any:
    return load("scipy.linalg.lapack").get_lapack_funcs(_unitary(name) if dtype.kind == "c" else name, dtype=dtype)


@functools.cache
def _workspace(name: str, dtype: np.dtype, *arguments: int) -> int:
    """Return the numbers that a function wants as workspace.

    With fewer it takes longer, and rounds otherwise.
    """
    (ask,) = functions([f"{name}_lwork"], dtype)
    size = ask(*arguments)[0].real
    return int(np.ceil(np.nextafter(size, np.inf, dtype=np.float32) if dtype in _SINGLE else size))


def _unitary(name: str) -> str:
    """Return a function's name for unitary or Hermitian matrices."""
    return {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]


def each(
    compute: Callable[..., Any],
    stacks: Sequence[tuple[np.ndarray, int]],
    results: Sequence[tuple[Sequence[int], Any]],
    only_finite: bool = False,
) -> Result:
    """Compute the results, of given shapes and dtypes, for every element of stacks.

    A stack stands with the number of dimensions of an element. `only_finite` says that where the first holds numbers that are not finite
    the results are NaN: some versions of LAPACK would not return.
    """
    out = tuple([np.full(shape, np.nan, dtype) for shape, dtype in results])
    if not any(result.size for result in out):
        return out
    first, rank = stacks[0]
    finite = np.isfinite(first).all(tuple(range(first.ndim - rank, first.ndim))) if only_finite else None
    for index in np.ndindex(first.shape[: first.ndim - rank]):
        if finite is None or finite[index]:
            for result, value in zip(out, compute(*[stack[index] for stack, _ in stacks]), strict=True):
                result[index] = value
    return out


def hessenberg(x: np.ndarray) -> Result:
    """Return Hessenberg forms with reflectors below, and the reflectors' factors."""
    (gehrd,) = functions(["gehrd"], x.dtype)
    n = x.shape[-1]
    return each(lambda m: gehrd(m)[:2], [(x, 2)], [(x.shape, x.dtype), ((*x.shape[:-2], max(0, n - 1)), x.dtype)])


def schur(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return Schur forms, and vectors if asked; NaN where LAPACK does not converge."""
    (gees,) = functions(["gees"], x.dtype)

    def compute(m: np.ndarray) -> Any:
        outputs = gees(lambda *_: None, m, compute_v=compute_vectors)
        form, vectors = (outputs[0], outputs[-3]) if not outputs[-1] else (np.nan, np.nan)
        return (form, vectors) if compute_vectors else (form,)

    return each(compute, [(x, 2)], [(x.shape, x.dtype)] * (1 + compute_vectors), only_finite=True)


def tridiagonal(x: np.ndarray, *, lower: bool) -> Result:
    """Return tridiagonal forms with reflectors, two diagonals, and factors."""
    (sytrd,) = functions(["sytrd"], x.dtype)
    *stack, n, _ = x.shape
    real, less = x.real.dtype, max(0, n - 1)
    shapes = [(x.shape, x.dtype), ((*stack, n), real), ((*stack, less), real), ((*stack, less), x.dtype)]
    return each(lambda m: sytrd(m, lower=lower)[:4], [(x, 2)], shapes)


def householder_product(a: np.ndarray, taus: np.ndarray) -> np.ndarray:
    """Return the first columns of products of Householder's reflections."""
    (orgqr,) = functions(["orgqr"], a.dtype)
    (out,) = each(lambda m, t: orgqr(m, t)[:1], [(a, 2), (taus, 1)], [(a.shape, a.dtype)])
    return out


def tridiagonal_solve(dl: np.ndarray, d: np.ndarray, du: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the solutions of tridiagonal systems; NaN where a matrix is singular."""
    (gtsv,) = functions(["gtsv"], b.dtype)

    def compute(lower: np.ndarray, diagonal: np.ndarray, upper: np.ndarray, right: np.ndarray) -> Any:
        # A further equation, x = 0, for SciPy does not take diagonals without elements.
        one, more = np.ones(1, b.dtype), np.zeros((1, b.shape[-1]), b.dtype)
        sides = [np.append(side, 0 * one) for side in (lower[1:], upper[:-1])]
        *_, x, status = gtsv(sides[0], np.append(diagonal, one), sides[1], np.vstack([right, more]))
        return (np.nan if status else x[:-1],)

    (out,) = each(compute, [(dl, 1), (d, 1), (du, 1), (b, 2)], [(b.shape, b.dtype)])
    return out


def lapack_lu(x: np.ndarray) -> Result:
    """Return what `linalg.lu` does."""
    (getrf,) = functions(["getrf"], x.dtype)
    (laswp,) = functions(["laswp"], np.dtype(np.float64))
    *batch, m, n = x.shape
    order = np.arange(m, dtype=np.float64)[:, None]
    packed, pivots, permutation = np.empty_like(x), np.empty((*batch, min(m, n)), np.int32), np.empty((*batch, m), np.int32)
    for index in np.ndindex(*batch):
        packed[index], pivots[index], _ = getrf(x[index])
        permutation[index] = laswp(order, pivots[index])[:, 0]
    return packed, pivots, permutation


def lapack_triangular_solve(
    a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> np.ndarray:
    """Do what `linalg.triangular_solve` does; to BLAS it is Xᵀ op(A)ᵀ = Bᵀ."""
    trsm = load("scipy.linalg.blas").get_blas_funcs("trsm", dtype=b.dtype)
    conjugates = conjugate_a and not transpose_a and a.dtype.kind == "c"
    op = 0 if not transpose_a else 2 if conjugate_a else 1
    b = b.conj() if conjugates else b
    out = np.empty_like(b, order="C")
    for index in np.ndindex(b.shape[:-2]):
        out[index] = trsm(1, a[index].T, b[index].T, side=left_side, lower=not lower, trans_a=op, diag=unit_diagonal).T
    return out.conj() if conjugates else out


# Linear algebra in NumPy: factorisations and triangular solves.
#
# Operands are stacks of matrices. The dtypes are float32, float64, complex64 and complex128; leading dimensions are a batch. Where a
# factorisation does not exist or LAPACK does not converge, that matrix's results are NaN and the others' are unharmed. NumPy brings
# LAPACK's Cholesky, QR, eigenvalue and singular value routines, SciPy LU and the triangular solve; where it is not installed
# these are recursions whose work is matrix products. NumPy computes single precision in double, which gives vectors of other signs than
# machine code's and JAX's, and factors of what is not definite; SciPy serves for that, too.

#: Blocks up to this size are solved and factored row by row (column by column); larger ones are split in two.
_BLOCK = 16


def _needs_scipy(x: np.ndarray) -> bool:
    """Return True if NumPy would compute in another precision than machine code."""
    return x.size > 0 and x.dtype in _SINGLE and has_scipy()


def cholesky(x: np.ndarray) -> np.ndarray:
    """Return L with L Lᴴ = x from x's lower triangle; NaN if not positive definite."""
    if not _needs_scipy(x):
        (factor,) = _each(lambda m: (np.linalg.cholesky(m),), x, [(x.shape, x.dtype)])
        return np.tril(factor)
    (potrf,) = functions(["potrf"], x.dtype)
    out = np.empty_like(x, order="C")
    for index in np.ndindex(x.shape[:-2]):
        factor, failed = potrf(x[index], lower=True)
        out[index] = np.tril(np.full_like(factor, np.nan)) if failed else factor
    return out


def qr(x: np.ndarray, *, full_matrices: bool, compute_q: bool) -> Result:
    """Return Q with orthonormal columns and upper triangular R with Q R = x.

    Without `compute_q` it is the tuple of R alone, as it is without `full_matrices`.
    """
    *batch, m, n = x.shape
    k = m if full_matrices and compute_q else min(m, n)
    if not _needs_scipy(x):
        if not compute_q:
            return (np.asarray(np.linalg.qr(x, mode="r")),)
        q, r = np.linalg.qr(x, mode="complete" if full_matrices else "reduced")
        return q, r
    geqrf, orgqr = functions(["geqrf", "orgqr"], x.dtype)
    q, r, work = np.empty((*batch, m, k), x.dtype), np.empty((*batch, k, n), x.dtype), _workspace("geqrf", x.dtype, m, n)
    for index in np.ndindex(*batch):
        columns, scales, *_ = geqrf(x[index], lwork=work)
        r[index] = columns[:k]
        if compute_q:
            reflectors = np.zeros((m, k), x.dtype, order="F")
            reflectors[:, : min(n, k)] = columns[:, :k]
            # LAPACK's blocks have at most 64 columns.
            q[index] = orgqr(reflectors, scales, lwork=64 * k, overwrite_a=True)[0]
    return (q, np.triu(r)) if compute_q else (np.triu(r),)


def eigh(x: np.ndarray, *, lower: bool, sort_eigenvalues: bool) -> Result:
    """Return eigenvectors, as columns, and ascending eigenvalues.

    The matrices are Hermitian, and one triangle is read: where it has numbers that are not finite, results are NaN. The eigenvalues ascend
    whether or not ``sort_eigenvalues`` asks for it.
    """
    # LAPACK finds finite eigenvalues of some matrices with NaN.
    triangle, shapes = np.tril(x) if lower else np.triu(x), [(x.shape, x.dtype), (x.shape[:-1], x.real.dtype)]
    if _needs_scipy(x):
        (syevd,) = functions(["syevd"], x.dtype)

        def decompose(m: np.ndarray) -> Any:
            w, v, failed = syevd(m, lower=lower)
            return (np.nan, np.nan) if failed else (v, w)

        return each(decompose, [(triangle, 2)], shapes, only_finite=True)

    def vectors_first(m: np.ndarray) -> Result:
        w, v = np.linalg.eigh(m, UPLO="L" if lower else "U")
        return v, w

    v, w = _each(vectors_first, x, shapes)
    wrong = ~np.isfinite(triangle).all((-2, -1))
    if wrong.any():
        v[wrong], w[wrong] = np.nan, np.nan
    return v, w


def svd(x: np.ndarray, *, full_matrices: bool, compute_uv: bool) -> Result:
    """Return descending singular values s, or ``(s, U, Vᴴ)`` with U diag(s) Vᴴ = x.

    U and Vᴴ are returned if ``compute_uv``.
    """
    *batch, m, n = x.shape
    k = min(m, n)
    shapes = [((*batch, k), x.real.dtype)]
    if compute_uv:
        shapes += [((*batch, m, m if full_matrices else k), x.dtype), ((*batch, n if full_matrices else k, n), x.dtype)]
    if _needs_scipy(x):
        (gesdd,) = functions(["gesdd"], x.dtype)
        options = {"compute_uv": compute_uv, "full_matrices": full_matrices}
        work = _workspace("gesdd", x.dtype, m, n, compute_uv, full_matrices)

        def factor(matrix: np.ndarray) -> Any:
            u, s, vt, failed = gesdd(matrix, lwork=work, **options)
            return ((np.nan,) * 3 if failed else (s, u, vt))[: len(shapes)]

        return each(factor, [(x, 2)], shapes, only_finite=True)
    if not compute_uv:
        return _each(lambda m: (np.linalg.svd(m, compute_uv=False),), x, shapes)

    def values_first(m: np.ndarray) -> Result:
        u, s, vt = np.linalg.svd(m, full_matrices=full_matrices)
        return s, u, vt

    return _each(values_first, x, shapes)


def eig(x: np.ndarray, *, compute_vectors: bool) -> Result:
    """Return complex eigenvalues, and if asked right eigenvectors of unit length."""
    dtype = np.result_type(x.dtype, np.complex64)
    shapes = [(x.shape[:-1], dtype), (x.shape, dtype)][: 1 + compute_vectors]
    if _needs_scipy(x):
        (geev,), work = functions(["geev"], x.dtype), _workspace("geev", x.dtype, x.shape[-1], False, compute_vectors)
        parts = 1 + (x.dtype.kind != "c")

        def compute(m: np.ndarray) -> Any:
            *values, _, v, failed = geev(m, compute_vl=False, compute_vr=compute_vectors, lwork=work)
            return (np.nan,) * (parts + compute_vectors) if failed else (*values, v)[: parts + compute_vectors]

        results = [(x.shape[:-1], x.dtype)] * parts + [(x.shape, x.dtype)] * compute_vectors
        outputs = each(compute, [(x, 2)], results, only_finite=True)
        return outputs if parts == 1 else _conjugate_pairs(*outputs)
    if not compute_vectors:
        return _each(lambda m: (np.linalg.eigvals(m).astype(dtype, copy=False),), x, shapes)

    def decompose(m: np.ndarray) -> Result:
        w, v = np.linalg.eig(m)
        return w.astype(dtype, copy=False), v.astype(dtype, copy=False)

    return _each(decompose, x, shapes)


def _conjugate_pairs(real: np.ndarray, imaginary: np.ndarray, *columns: np.ndarray) -> Result:
    """Return complex eigenvalues and vectors.

    LAPACK gives the real and the imaginary parts of a pair's vectors as two columns.
    """
    first, second = imaginary[..., None, :] > 0, imaginary[..., None, :] < 0
    vectors = []
    for v in columns:
        before, after = (np.concatenate([v[..., i:], v[..., :i]], -1) for i in (-1, 1))
        vectors.append((np.where(second, before, v), np.where(second, -v, np.where(first, after, v.dtype.type(0)))))
    return tuple([_complex(*parts) for parts in ((real, imaginary), *vectors)])


def _complex(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    out = np.empty(real.shape, np.result_type(real, np.complex64))
    out.real, out.imag = real, imaginary
    return out


def _each(function: Callable[[np.ndarray], Result], x: np.ndarray, results: Sequence[tuple[Sequence[int], np.dtype]]) -> Result:
    """Apply ``function`` to the stack, else to each matrix, with NaN where it fails."""
    try:
        return function(x)
    except np.linalg.LinAlgError:
        pass
    out = tuple(np.full(shape, np.nan, dtype) for shape, dtype in results)
    for index in np.ndindex(x.shape[:-2]):
        try:
            values = function(x[index])
        except np.linalg.LinAlgError:
            continue
        for stack, value in zip(out, values, strict=True):
            stack[index] = value
    return out


# The triangular solve.


def triangular_solve(
    a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> np.ndarray:
    """Return X with op(a) X = b, or X op(a) = b unless ``left_side``.

    ``op`` transposes or conjugates ``a``, of which one triangle is read. Where the diagonal has a zero the result has infinities or NaN.
    """
    if b.size and has_scipy():
        flags = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a}
        return lapack_triangular_solve(a, b, unit_diagonal=unit_diagonal, **flags)
    a = a.conj() if conjugate_a else a
    if transpose_a != (not left_side):
        a, lower = a.swapaxes(-1, -2), not lower
    x = np.array(b if left_side else b.swapaxes(-1, -2), order="C")
    if not lower:  # Turned by half a circle, an upper triangle is a lower one.
        _solve_lower(a[..., ::-1, ::-1], x[..., ::-1, :], unit_diagonal)
    else:
        _solve_lower(a, x, unit_diagonal)
    return x if left_side else x.swapaxes(-1, -2)


def _solve_lower(a: np.ndarray, x: np.ndarray, unit_diagonal: bool) -> None:
    """Replace ``x`` by the solution of L X = x, L being the lower triangle of ``a``."""
    n = a.shape[-1]
    if n <= _BLOCK:
        for i in range(n):
            if i:
                x[..., i, :] -= (a[..., i : i + 1, :i] @ x[..., :i, :])[..., 0, :]
            if not unit_diagonal:
                x[..., i, :] /= a[..., i, i, None]
        return
    half = n // 2
    top, bottom = x[..., :half, :], x[..., half:, :]
    _solve_lower(a[..., :half, :half], top, unit_diagonal)
    bottom -= a[..., half:, :half] @ top
    _solve_lower(a[..., half:, half:], bottom, unit_diagonal)


# LU.


def lu(x: np.ndarray) -> Result:
    """Return the LU decomposition with partial pivoting: ``x[permutation] = L U``.

    L (unit lower triangular) and U are in one matrix; then come the int32 ``pivots`` (step i exchanged rows i and pivots[i]) and the int32
    ``permutation``. A singular matrix has zeros on the diagonal of U. The recursion is Toledo's (SIAM J. Matrix Anal. Appl. 18, 1997).
    """
    if x.size and has_scipy():
        return lapack_lu(x)
    *batch, m, n = x.shape
    out = np.array(x, order="C").reshape(math.prod(batch), m, n)
    pivots, permutation = _factor(out)
    return out.reshape(x.shape), pivots.astype(np.int32).reshape(*batch, min(m, n)), permutation.astype(np.int32).reshape(*batch, m)


def _factor(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace each matrix of the stack by its L and U; return pivots and permutation."""
    rank = min(a.shape[1:])
    if rank <= _BLOCK:
        stack, m, n = a.shape
        each = np.arange(stack)
        pivots = np.zeros((stack, min(m, n)), np.intp)
        permutation = np.tile(np.arange(m), (stack, 1))
        for j in range(min(m, n)):
            pivot = pivots[:, j] = j + _size(a[:, j:, j]).argmax(axis=1)
            for rows in (a, permutation):
                chosen = rows[each, pivot]
                rows[each, pivot] = rows[:, j]
                rows[:, j] = chosen
            below, diagonal = a[:, j + 1 :, j], a[:, j, j, None]
            below /= np.where(diagonal == 0, 1, diagonal)
            if j + 1 < n:
                a[:, j + 1 :, j + 1 :] -= below[..., None] * a[:, j, None, j + 1 :]
        return pivots, permutation
    half = rank // 2
    left, right = a[:, :, :half], a[:, :, half:]
    pivots, permutation = _factor(left)
    right[:] = _permuted(right, permutation)
    _solve_lower(left[:, :half], right[:, :half], unit_diagonal=True)
    right[:, half:] -= left[:, half:] @ right[:, :half]
    more_pivots, more = _factor(right[:, half:])
    left[:, half:] = _permuted(left[:, half:], more)
    permutation[:, half:] = np.take_along_axis(permutation[:, half:], more, 1)
    return np.concatenate([pivots, more_pivots + half], axis=1), permutation


def _size(x: np.ndarray) -> np.ndarray:
    """Return the size by which pivots are compared: |re| + |im|, as in LAPACK."""
    return abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)


def _permuted(rows: np.ndarray, permutation: np.ndarray) -> np.ndarray:
    return np.take_along_axis(rows, permutation[:, :, None], axis=1)
