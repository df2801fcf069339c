"""Every public name of `scipy.linalg` against SciPy's function, by dtype; stages and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.scipy.linalg
import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
from tests.narrow_devices import where_the_device_has_the_dtypes
from tests.numpy.linalg.test_linalg import close, differentiable, make, positive
from volta_fn import errors
from volta_fn.lazy_imports import public_names
from volta_fn.scipy import linalg

DTYPES = ["float32", "float64", "complex64", "complex128"]
Case = Callable[[Any, str], Any]
HERMITIAN = ("sym", "her", "pos")


def vectors_up_to_phase(values: Any, vectors: Any) -> Any:
    """Eigenvectors are unique up to a factor of size 1, which their magnitudes do not show."""
    return values, np.abs(np.asarray(vectors))


#: What each function computes, given the module (SciPy's or ours) and a dtype; results of both are compared.
CASES: dict[str, Case] = {
    "block_diag": lambda m, t: m.block_diag(make(2, 3, dtype=t), make(1, 2, dtype=t)),
    "cho_factor": lambda m, t: np.tril(m.cho_factor(positive(4, 4, dtype=t), True)[0]),
    "cho_solve": lambda m, t: m.cho_solve(m.cho_factor(positive(4, 4, dtype=t)), make(4, 2, dtype=t)),
    "cholesky": lambda m, t: [m.cholesky(np.triu(positive(4, 4, dtype=t))), m.cholesky(positive(4, 4, dtype=t), lower=True)],
    "circulant": lambda m, t: [m.circulant(make(4, dtype=t)), m.circulant(make(2, 3, dtype=t))],
    "companion": lambda m, t: [m.companion(make(5, dtype=t)), m.companion(make(2, 3, dtype=t)), m.companion(make(2, dtype=t))],
    "convolution_matrix": lambda m, t: [
        m.convolution_matrix(make(size, dtype=t), n, mode) for size, n in ((4, 2), (2, 5), (3, 3)) for mode in ("full", "same", "valid")
    ],
    "det": lambda m, t: m.det(make(4, 4, dtype=t)),
    "dft": lambda m, t: [m.dft(6, scale) for scale in (None, "sqrtn", "n")],
    "eigh": lambda m, t: [
        *vectors_up_to_phase(*m.eigh(positive(4, 4, dtype=t), lower=False)),
        m.eigh(np.tril(positive(4, 4, dtype=t)), eigvals_only=True),
        *[x for k in (1, 2, 3) for x in vectors_up_to_phase(*m.eigh(make(4, 4, dtype=t), np.tril(positive(4, 4, dtype=t)), type=k))],
        *vectors_up_to_phase(*m.eigh(make(4, 4, dtype=t), subset_by_index=[1, 2])),
        m.eigh(make(4, 4, dtype=t), subset_by_value=[-1.0, 0.9], eigvals_only=True),
    ],
    "eigh_tridiagonal": lambda m, t: [
        *vectors_up_to_phase(*m.eigh_tridiagonal(make(5).astype(t).real, make(4, seed=1).astype(t).real)),
        m.eigh_tridiagonal(make(5), make(4), True, "i", (1, 3)).astype(t),
        m.eigh_tridiagonal(make(5), make(4), True, "v", (-0.5, 9.0)).astype(t),
    ],
    "eigvalsh": lambda m, t: [m.eigvalsh(make(4, 4, dtype=t)), m.eigvalsh(make(4, 4, dtype=t), positive(4, 4, dtype=t), lower=False)],
    "expm": lambda m, t: m.expm(make(3, 4, 4, dtype=t)),
    "expm_frechet": lambda m, t: [
        *m.expm_frechet(make(3, 3, dtype=t), make(3, 3, dtype=t, seed=1)),
        m.expm_frechet(make(3, 3, dtype=t), make(3, 3, dtype=t, seed=1), compute_expm=False),
    ],
    "fiedler": lambda m, t: m.fiedler(make(4).astype(t).real),
    "fiedler_companion": lambda m, t: [m.fiedler_companion(make(n, dtype=t)) for n in (2, 3, 4, 7)],
    "hadamard": lambda m, t: m.hadamard(8, dtype=t),
    "hankel": lambda m, t: [m.hankel(make(3, dtype=t)), m.hankel(make(3, dtype=t), make(5, dtype=t, seed=1))],
    "helmert": lambda m, t: [m.helmert(4), m.helmert(4, full=True)],
    "hilbert": lambda m, t: m.hilbert(4),
    "inv": lambda m, t: [m.inv(positive(4, 4, dtype=t)), m.inv(positive(4, 4, dtype=t), assume_a="pos", lower=True)],
    "invhilbert": lambda m, t: m.invhilbert(4),
    "invpascal": lambda m, t: [m.invpascal(5, kind) for kind in ("symmetric", "lower", "upper")],
    "leslie": lambda m, t: m.leslie(make(4, dtype=t), make(3, dtype=t)),
    "lu": lambda m, t: [*m.lu(make(5, 3, dtype=t)), *m.lu(make(3, 5, dtype=t), True), *m.lu(make(4, 3, dtype=t), p_indices=True)],
    "lu_factor": lambda m, t: [x for shape in ((4, 4), (5, 3), (3, 5)) for x in m.lu_factor(make(*shape, dtype=t))],
    "lu_solve": lambda m, t: m.lu_solve(m.lu_factor(make(4, 4, dtype=t)), make(4, dtype=t), trans=1),
    "norm": lambda m, t: [m.norm(make(3, 4, dtype=t)), m.norm(make(3, 4, dtype=t), 1, axis=1, keepdims=True)],
    "pascal": lambda m, t: [m.pascal(5, kind) for kind in ("symmetric", "lower", "upper")],
    "pinv": lambda m, t: [
        m.pinv(make(4, 3, dtype=t)), *m.pinv(np.diag([1, 0.5, 0.1]).astype(t), atol=0.05, rtol=0.1, return_rank=True),
        m.pinv(np.diag([1, 0.5, 1e-9]).astype(t), atol=1e-8),
    ],
    "qr": lambda m, t: [
        *m.qr(make(4, 3, dtype=t), mode="economic"), *m.qr(make(3, 4, dtype=t)), *m.qr(make(4, 3, dtype=t), mode="r"),
        *m.qr(make(5, 4, dtype=t), mode="economic", pivoting=True), *m.qr(make(3, 6, dtype=t), mode="r", pivoting=True),
    ],
    "qr_multiply": lambda m, t: [
        *m.qr_multiply(make(4, 3, dtype=t), make(2, 4, dtype=t)), *m.qr_multiply(make(4, 3, dtype=t), make(3, 2, dtype=t), "left"),
        *m.qr_multiply(make(4, 3, dtype=t), make(4, dtype=t), conjugate=True),
        *m.qr_multiply(make(4, 3, dtype=t), make(3, dtype=t), "left", pivoting=True),
    ],
    "solve": lambda m, t: [
        m.solve(positive(4, 4, dtype=t), make(4, 2, dtype=t), lower=lower, assume_a=kind, transposed=transposed)
        for kind in (None, "gen", "general", "diagonal", "tridiagonal", "banded", "upper triangular", "lower triangular", *HERMITIAN)
        for lower in (False, True) for transposed in (False, True)[: 1 + (np.dtype(t).kind == "f")]  # SciPy transposes real ones only
    ],
    "solve_sylvester": lambda m, t: m.solve_sylvester(positive(4, 4, dtype=t), positive(3, 3, dtype=t), make(4, 3, dtype=t)),
    "solve_triangular": lambda m, t: m.solve_triangular(positive(4, 4, dtype=t), make(4, 2, dtype=t), "C", True, True),
    "svd": lambda m, t: [m.svd(make(4, 3, dtype=t), compute_uv=False), m.svd(make(4, 3, dtype=t), False)[1], m.svd(make(4, 3, dtype=t))[1]],
    "svdvals": lambda m, t: m.svdvals(make(4, 3, dtype=t)),
    "toeplitz": lambda m, t: [m.toeplitz(make(3, dtype=t)), m.toeplitz(make(3, dtype=t), make(4, dtype=t, seed=1))],
}  # fmt: skip

#: Functions that test_condensed_forms.py and test_matrix_functions.py compare.
ELSEWHERE = {"schur", "rsf2csf", "hessenberg", "sqrtm", "funm", "polar"}

#: Functions whose dtype no argument decides.
CONSTANTS = {"dft", "helmert", "hilbert", "invhilbert", "invpascal", "pascal", "eigh_tridiagonal"}


def test_every_name_has_a_case() -> None:
    assert set(CASES) | ELSEWHERE == set(public_names(linalg.__name__))


def test_every_name_of_jax_is_there() -> None:
    assert {name for name in dir(jax.scipy.linalg) if not name.startswith("_")} <= set(dir(linalg))


@where_the_device_has_the_dtypes()
def agrees(name: str, dtype: str) -> None:
    got, wanted = (CASES[name](module, dtype) for module in (linalg, scipy.linalg))
    close(got, wanted, np.result_type(dtype, "float32") if name not in CONSTANTS else "float32")
    kinds = {leaf.dtype for leaf in vf.tree.leaves(got) if leaf.dtype.kind in "fc"}
    assert name in CONSTANTS or kinds <= {np.dtype(dtype), np.zeros(0, dtype).real.dtype}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_scipy(name: str, dtype: str) -> None:
    agrees(name, dtype)


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(CONSTANTS - {"dft", "eigh_tridiagonal"}))
def test_constants_are_rounded_once(name: str) -> None:
    got, wanted = getattr(linalg, name)(7, dtype="float64"), getattr(scipy.linalg, name)(7)
    np.testing.assert_array_max_ulp(np.asarray(got), np.asarray(wanted, float), maxulp=1)
    assert getattr(linalg, name)(3).dtype == np.float32


@pytest.mark.wide
def test_fourier_matrices() -> None:
    np.testing.assert_allclose(linalg.dft(9, dtype="complex128"), scipy.linalg.dft(9), rtol=1e-13, atol=1e-14)
    assert linalg.dft(0).shape == linalg.hilbert(0).shape == linalg.pascal(0).shape == linalg.invpascal(0).shape == (0, 0)


STACKS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "pivoted qr": (lambda a: linalg.qr(a, mode="economic", pivoting=True), ((4, 3),)),
    "qr_multiply": (linalg.qr_multiply, ((4, 3), (2, 4))),
    "circulant": (linalg.circulant, ((4,),)),
    "companion": (linalg.companion, ((4,),)),
    "convolution_matrix": (lambda a: linalg.convolution_matrix(a, 3, "same"), ((4,),)),
    "fiedler": (linalg.fiedler, ((4,),)),
    "fiedler_companion": (linalg.fiedler_companion, ((5,),)),
    "hankel": (linalg.hankel, ((3,), (4,))),
    "leslie": (linalg.leslie, ((4,), (3,))),
    "eigh_tridiagonal": (lambda d, e: linalg.eigh_tridiagonal(d, e, eigvals_only=True), ((4,), (3,))),
    "eigvalsh of pairs": (lambda a, b: linalg.eigvalsh(a, b @ b.swapaxes(-1, -2) + 4 * np.eye(4)), ((4, 4), (4, 4))),
    "expm_frechet": (linalg.expm_frechet, ((3, 3), (3, 3))),
    "solve": (lambda a, b: linalg.solve(a @ a.swapaxes(-1, -2) + 4 * np.eye(4), b, assume_a="pos"), ((4, 4), (4, 2))),
    "pinv": (lambda a: linalg.pinv(a, atol=1e-3), ((4, 3),)),
    "solve_sylvester": (linalg.solve_sylvester, ((4, 4), (3, 3), (4, 3))),
    "solve_sylvester by eigenvectors": (lambda *matrices: linalg.solve_sylvester(*matrices, method="eigen"), ((4, 4), (3, 3), (4, 3))),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_loops_under_every_stage(name: str) -> None:
    function, shapes = STACKS[name]
    xs = [make(3, *shape, seed=i) for i, shape in enumerate(shapes)]
    each = [vf.tree.leaves(function(*rows)) for rows in zip(*xs, strict=True)]
    wanted = [np.stack([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*each, strict=True)]
    for got in (function(*xs), vf.vmap(function)(*xs), vf.jit(vf.vmap(function))(*xs)):
        for leaf, expected in zip(vf.tree.leaves(got), wanted, strict=True):
            np.testing.assert_allclose(leaf, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("name", STACKS)
def test_derivatives(name: str) -> None:
    function, shapes = STACKS[name]
    floats = lambda *args: [x for x in vf.tree.leaves(function(*args)) if x.dtype.kind == "f"]
    differentiable(floats, *[make(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.wide
def test_derivatives_by_the_matrices_that_are_assumed() -> None:
    a, b = positive(3, 3), make(3, 2, seed=1)
    for kind in ("gen", "diagonal", "tridiagonal", "upper triangular", "sym", "her", "pos"):
        differentiable(lambda a, b, kind=kind: linalg.solve(a, b, assume_a=kind), a, b)
    differentiable(lambda a, b: linalg.eigh(a, b @ b.T + 3 * np.eye(3), type=2)[0], a, make(3, 3))
    differentiable(lambda a: linalg.cholesky(a + a.T), a)
    differentiable(lambda a: [abs(x) for x in linalg.qr(a, mode="economic")], make(4, 3))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["gen", "diagonal", "upper triangular", "lower triangular", *HERMITIAN])
def test_transposed_complex_systems(kind: str) -> None:
    a, b = positive(3, 3, dtype="complex128"), make(3, dtype="complex128")
    read = {"diagonal": np.diag(np.diag(a)), "upper triangular": np.triu(a), "lower triangular": np.tril(a)}.get(kind, a)
    read = np.tril(a) + np.tril(a, -1).T if kind == "sym" else read
    arguments = np.tril(a) if kind in HERMITIAN else a
    np.testing.assert_allclose(linalg.solve(arguments, b, True, assume_a=kind, transposed=True), np.linalg.solve(read.T, b), rtol=1e-12)


def test_broadcast_and_empty_systems() -> None:
    a, b = positive(2, 1, 3, 3, dtype="float32"), make(4, 3, 2, dtype="float32")
    for kind in ("gen", "pos", "diagonal", "upper triangular"):
        assert linalg.solve(a, b, assume_a=kind).shape == (2, 4, 3, 2)
        assert linalg.solve(np.zeros((0, 0), np.float32), np.zeros((0, 2), np.float32), assume_a=kind).shape == (0, 2)
    assert linalg.circulant(np.zeros(0, np.float32)).shape == linalg.fiedler(np.zeros(0, np.float32)).shape == (0, 0)
    assert linalg.companion(np.array([1, 2, 3], np.int32)).dtype == np.float32
    for shape in ((0, 3), (3, 0), (0, 0)):
        for mode in ("full", "economic", "r"):
            factors = [m.qr(np.zeros(shape, np.float32), mode=mode, pivoting=True) for m in (linalg, scipy.linalg)]
            assert [x.shape for x in factors[0]] == [x.shape for x in factors[1]]
    for trans in (0, 1):
        assert linalg.lu_solve(linalg.lu_factor(np.zeros((0, 0), np.float32)), np.zeros(0, np.float32), trans=trans).shape == (0,)


EYE = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize("method", ["schur", "eigen"])
def test_sylvester_equations_of_other_shapes(method: str) -> None:
    solve = partial(linalg.solve_sylvester, method=method)
    assert np.isnan(solve(EYE, -EYE, EYE)).all()  # eigenvalues 1 and -1: no unique solution
    assert solve(EYE, EYE[:0, :0], EYE[:, :0]).shape == (3, 0)
    a, b, c = make(3, 3, dtype="complex64"), positive(2, 2, dtype="float32"), make(5, 3, 2, dtype="float32")
    np.testing.assert_allclose(solve(a, b, c)[4], scipy.linalg.solve_sylvester(a, b, c[4]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: linalg.qr(EYE, mode="raw"), errors.ArgumentError, "got 'raw'"),
        (lambda: linalg.qr_multiply(EYE, EYE, "up"), errors.ArgumentError, "'left' or 'right'"),
        (lambda: linalg.qr_multiply(EYE, np.ones((2, 2), np.float32)), errors.ShapeError, "does not fit"),
        (lambda: linalg.eigh(EYE, type=4), errors.ArgumentError, "type must be 1, 2 or 3"),
        (lambda: linalg.eigh(EYE, np.eye(2, dtype=np.float32)), errors.ShapeError, "one shape"),
        (lambda: linalg.eigh(EYE, subset_by_index=[0, 3]), errors.ArgumentError, "last < 3"),
        (lambda: linalg.eigh(EYE, subset_by_index=[0, 1.5]), errors.ArgumentTypeError, "must be an integer"),
        (lambda: linalg.eigh(EYE, subset_by_value=[1, 1]), errors.ArgumentError, "low < high"),
        (lambda: linalg.eigh(EYE[None], subset_by_value=[0, 1]), errors.ShapeError, "single matrix"),
        (lambda: linalg.eigh(EYE, subset_by_value=[0, 1], subset_by_index=[0, 1]), errors.ArgumentError, "not both"),
        (lambda: vf.jit(lambda a: linalg.eigvalsh(a, subset_by_value=[0, 1]))(EYE), errors.ConcretizationError, "by index"),
        (lambda: linalg.eigh_tridiagonal(EYE[0], EYE[0]), errors.ShapeError, "N - 1"),
        (lambda: linalg.eigh_tridiagonal(EYE[0], EYE[0, 1:], select="i"), errors.ArgumentError, "select_range"),
        (lambda: linalg.solve_sylvester(EYE, EYE, EYE, method="x"), errors.ArgumentError, "'schur' or 'eigen'"),
        (lambda: linalg.solve_sylvester(EYE, EYE, EYE[:2]), errors.ShapeError, r"C \(M, N\)"),
        (lambda: linalg.solve(EYE, EYE[0], assume_a="round"), errors.ArgumentError, "assume_a must be one of 'gen'"),
        (lambda: linalg.solve(EYE, np.ones(2, np.float32)), errors.ShapeError, "b must have 3 rows"),
        (lambda: linalg.expm_frechet(EYE, EYE[:2, :2]), errors.ShapeError, "one shape"),
        (lambda: linalg.expm_frechet(EYE, EYE, "x"), errors.ArgumentError, "got 'x'"),
        (lambda: linalg.hadamard(6), errors.ArgumentError, "power of two, got 6"),
        (lambda: linalg.dft(3, "x"), errors.ArgumentError, "got 'x'"),
        (lambda: linalg.hilbert(2.5), errors.ArgumentTypeError, "n must be an integer"),
        (lambda: linalg.hilbert(-1), errors.ArgumentError, "at least 0, got -1"),
        (lambda: linalg.pascal(3, "x"), errors.ArgumentError, "kind must be"),
        (lambda: linalg.circulant(1.0), errors.ShapeError, "c must be a vector"),
        (lambda: linalg.companion(EYE[0, :1]), errors.ShapeError, "at least 2"),
        (lambda: linalg.leslie(EYE[0], EYE[0]), errors.ShapeError, "N - 1"),
        (lambda: linalg.hankel(np.ones((2, 3)), EYE), errors.ShapeError, "do not broadcast"),
        (lambda: linalg.convolution_matrix(EYE[0], 2, "x"), errors.ArgumentError, "'full', 'same' or 'valid'"),
    ],
)
def test_mistakes_are_explained(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_hermitian_tridiagonal_matrices() -> None:
    rng = np.random.default_rng(3)
    d, e = rng.normal(size=(2, 6)), rng.normal(size=(2, 5)) + 1j * rng.normal(size=(2, 5))
    values, vectors = linalg.eigh_tridiagonal(d.astype("complex64"), e.astype("complex64"))
    for k in range(2):
        matrix = np.diag(d[k]) + np.diag(e[k], 1) + np.diag(e[k].conj(), -1)
        np.testing.assert_allclose(values[k], np.linalg.eigvalsh(matrix), atol=1e-5)
        np.testing.assert_allclose(matrix @ np.asarray(vectors[k]), np.asarray(values[k]) * np.asarray(vectors[k]), atol=1e-5)
