"""Linear algebra against NumPy by dtype and stack; derivatives by differences."""

import numpy as np
import pytest

import volta_fn as vf
from tests.laws.derivatives import forward_holds, reverse_holds
from volta_fn import errors
from volta_fn.numpy import linalg

DTYPES = ["float32", "float64", "complex64", "complex128"]


def make(*shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if np.dtype(dtype).kind == "c" else 0)).astype(dtype)


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


def positive(*shape, dtype="float64"):
    x = make(*shape, dtype=dtype)
    return (x @ adjoint(x) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def close(got, expected, dtype, factor=1000):
    """Compare up to a thousand roundings: condition numbers are about a hundred."""
    tolerance = factor * np.finfo(dtype).eps
    for g, e in zip(vf.tree.leaves(got), vf.tree.leaves(expected), strict=True):
        e = np.asarray(e)
        np.testing.assert_allclose(np.asarray(g), e, rtol=tolerance, atol=tolerance * max(1, np.abs(e).max(initial=0)))


def differentiable(function, *args):
    flat = lambda *values: vf.tree.leaves(function(*values))
    forward_holds(flat, args, "forward", rtol=1e-7)
    reverse_holds(flat, args, "reverse", rtol=1e-9)


SAME = {
    "det": lambda f, dtype: f(make(2, 4, 4, dtype=dtype)),
    "det of 3x3": lambda f, dtype: f(make(3, 3, dtype=dtype)),
    "slogdet": lambda f, dtype: tuple(f(make(3, 4, 4, dtype=dtype))),
    "inv": lambda f, dtype: f(make(2, 4, 4, dtype=dtype)),
    "pinv": lambda f, dtype: f(make(2, 4, 3, dtype=dtype)),
    "svdvals": lambda f, dtype: f(make(2, 3, 4, dtype=dtype)),
    "eigvalsh": lambda f, dtype: f(positive(2, 4, 4, dtype=dtype)),
    "cholesky": lambda f, dtype: f(positive(2, 4, 4, dtype=dtype)),
    "qr": lambda f, dtype: tuple(f(make(2, 4, 3, dtype=dtype))),
    "matrix_rank": lambda f, dtype: f(make(4, 2, dtype=dtype) @ make(2, 4, dtype=dtype)),
    "matrix_power": lambda f, dtype: (f(make(2, 3, 3, dtype=dtype), 5), f(make(3, 3, dtype=dtype), -3), f(make(3, 3, dtype=dtype), 0)),
    "multi_dot": lambda f, dtype: f([make(n, m, dtype=dtype) for n, m in ((2, 9), (9, 3), (3, 5))]),
    "cond": lambda f, dtype: [f(make(2, 3, 3, dtype=dtype), p) for p in (None, 2, -2, 1, -1, np.inf, -np.inf, "fro")],
    "vector_norm": lambda f, dtype: [f(make(3, 4, dtype=dtype), axis=1, ord=p) for p in (0, 1, 2, 3, 0.5, -2, np.inf, -np.inf)],
    "matrix_norm": lambda f, dtype: [f(make(2, 3, 4, dtype=dtype), ord=p) for p in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)],
    "norm": lambda f, dtype: (f(make(2, 3, 4, dtype=dtype)), f(make(5, dtype=dtype), 1), f(make(2, 3, dtype=dtype), "nuc")),
    "tensorinv": lambda f, dtype: f(make(4, 6, 8, 3, dtype=dtype)),
    "tensorsolve": lambda f, dtype: f(make(2, 3, 6, dtype=dtype), make(2, 3, dtype=dtype, seed=1)),
    "outer": lambda f, dtype: f(make(2, dtype=dtype), make(3, dtype=dtype)),
    "cross": lambda f, dtype: f(make(2, 3, dtype=dtype), make(2, 3, dtype=dtype, seed=1)),
    "diagonal": lambda f, dtype: f(make(2, 3, 4, dtype=dtype), offset=1),
    "trace": lambda f, dtype: f(make(2, 3, 4, dtype=dtype), offset=-1),
    "vecdot": lambda f, dtype: f(make(2, 3, dtype=dtype), make(3, dtype=dtype, seed=1)),
    "matmul": lambda f, dtype: f(make(2, 3, 4, dtype=dtype), make(4, 2, dtype=dtype)),
    "matrix_transpose": lambda f, dtype: f(make(2, 3, 4, dtype=dtype)),
    "tensordot": lambda f, dtype: f(make(2, 3, 4, dtype=dtype), make(4, 3, dtype=dtype), axes=((1, 2), (1, 0))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SAME)
def test_agrees_with_numpy(name, dtype):
    function = name.split()[0]
    got, expected = (SAME[name](getattr(module, function), dtype) for module in (linalg, np.linalg))
    close(got, expected, dtype, 20000 if function == "tensorinv" else 1000)  # a random 24×24 matrix is worse conditioned
    for g, e in zip(vf.tree.leaves(got), vf.tree.leaves(expected), strict=True):
        assert g.dtype == np.asarray(e).dtype or function == "matrix_rank"


@pytest.mark.parametrize("dtype", DTYPES)
def test_decompositions_rebuild_the_matrix(dtype):
    x, h = make(2, 4, 3, dtype=dtype), positive(2, 4, 4, dtype=dtype)
    u, s, vh = map(np.asarray, linalg.svd(x, full_matrices=False))
    close((u * s[..., None, :]) @ vh, x, dtype)
    assert linalg.svd(x).U.shape == (2, 4, 4)
    w, v = map(np.asarray, linalg.eigh(h))
    close((v * w[..., None, :]) @ adjoint(v), h, dtype)
    close(linalg.eigh(np.triu(h), "U", symmetrize_input=False).eigenvalues, w, dtype)
    w, v = map(np.asarray, linalg.eig(make(3, 3, dtype=dtype)))
    close(make(3, 3, dtype=dtype) @ v, v * w, dtype)
    upper = np.asarray(linalg.cholesky(h, upper=True))
    close(adjoint(upper) @ upper, h, dtype)
    q, r = map(np.asarray, linalg.qr(x, mode="complete"))
    close(q @ r, x, dtype)
    close(linalg.qr(x, mode="r"), np.linalg.qr(x, mode="r"), dtype)
    close(np.sort_complex(np.asarray(linalg.eigvals(h[0]))), np.sort_complex(np.linalg.eigvals(h[0])), dtype)


@pytest.mark.wide
@pytest.mark.parametrize(
    "shapes", [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (3, 2)), ((3, 3), (2, 3, 2)), ((2, 1, 3, 3), (4, 3, 1)), ((2, 3, 3), (3,))]
)
def test_solve_broadcasts(shapes):
    a, b = make(*shapes[0]), make(*shapes[1], seed=1)
    close(linalg.solve(a, b), np.linalg.solve(a, b), "float64")
    differentiable(linalg.solve, a, b)


@pytest.mark.parametrize("det", [linalg.det, vf.jit(linalg.det)])
def test_determinants_of_singular_matrices_with_large_pivots(det):
    large = np.full(8, 1e20, np.float32)  # its product overflows
    for dtype in (np.float32, np.complex64):
        stack = np.stack([np.diag(np.where(np.arange(8) == place, 0, large)) for place in (0, 5, 7)]).astype(dtype)
        np.testing.assert_array_equal(det(stack), np.linalg.det(stack))
        assert np.isnan(det(np.where(np.arange(8) == 3, np.nan, stack[2])))
        assert np.isinf(det(np.diag(large)))


@pytest.mark.wide
def test_integers_become_floats():
    x = np.array([[2, 1], [1, 3]], np.int32)
    assert linalg.inv(x).dtype == np.float32 and linalg.norm(x).dtype == np.float32 and linalg.det(x).dtype == np.float32
    assert linalg.inv(x.astype(np.int64)).dtype == np.float64
    assert linalg.matrix_power(x, 3).dtype == np.int32


@pytest.mark.wide
def test_empty_matrices():
    empty = np.zeros((2, 0, 0))
    np.testing.assert_array_equal(np.asarray(linalg.det(empty)), [1, 1])
    assert linalg.inv(empty).shape == (2, 0, 0) and linalg.solve(empty, np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert float(linalg.norm(np.zeros((0, 3)))) == 0
    assert linalg.slogdet(empty).logabsdet.shape == (2,) and int(linalg.matrix_rank(np.zeros((0, 3)))) == 0
    assert linalg.pinv(np.zeros((3, 0))).shape == (0, 3)


# Derivatives.


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["det", "inv", "pinv", "slogdet", "tall pinv", "wide pinv"])
def test_derivatives(name, dtype):
    shape = {"tall pinv": (4, 2), "wide pinv": (2, 4)}.get(name, (4, 4))
    differentiable(getattr(linalg, name.split()[-1]), make(*shape, dtype=dtype))


@pytest.mark.wide
def test_the_determinant_of_singular_matrices_has_a_derivative():
    for size in (2, 3, 4, 6):
        x = make(size, size)
        x[:, -1] = x[:, 0] + x[:, 1]
        cofactors = [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(size)] for i in range(size)]
        np.testing.assert_allclose(np.asarray(vf.grad(linalg.det)(x)), cofactors, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(np.asarray(vf.grad(linalg.det)(np.zeros((4, 4)))), np.zeros((4, 4)))


@pytest.mark.wide
@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_derivatives_of_matrix_norms(order):
    differentiable(lambda x: linalg.norm(x, order, axis=(0, 2)), make(3, 2, 4))


@pytest.mark.parametrize("order", [1, 2, 3, 1.5, -2, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_vector_norms(order, dtype):
    differentiable(lambda x: linalg.vector_norm(x, ord=order, axis=(0, 1)), make(3, 2, dtype=dtype))


@pytest.mark.wide
@pytest.mark.parametrize("order", [None, 2, 3, 1.5])
def test_the_gradient_of_a_norm_at_zero_is_zero(order):
    np.testing.assert_array_equal(np.asarray(vf.grad(lambda x: linalg.norm(x, order))(np.zeros(3))), np.zeros(3))


@pytest.mark.wide
def test_derivatives_of_the_pseudo_inverse_at_equal_singular_values():
    differentiable(linalg.pinv, np.eye(3)[:, :2])


@pytest.mark.wide
def test_derivatives_of_least_squares():
    differentiable(lambda a, b: linalg.lstsq(a, b)[0], make(5, 3), make(5, 2, seed=1))
    differentiable(lambda a, b: linalg.lstsq(a, b)[0], make(2, 4), make(2, seed=1))


# Least squares, rank, condition.


@pytest.mark.wide
@pytest.mark.parametrize("shapes", [((5, 3), (5,)), ((5, 3), (5, 2)), ((2, 4), (2,))])
def test_least_squares(shapes):
    a, b = make(*shapes[0]), make(*shapes[1], seed=1)
    got, expected = linalg.lstsq(a, b, numpy_resid=True), np.linalg.lstsq(a, b)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.atleast_1d(np.asarray(g)), np.atleast_1d(e), rtol=1e-10, atol=1e-12)


@pytest.mark.wide
def test_least_squares_of_a_singular_matrix_is_the_shortest():
    a = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    x, residuals, rank, _ = linalg.lstsq(a, np.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(np.asarray(x), np.linalg.lstsq(a, np.array([1.0, 2.0, 4.0]))[0])
    assert int(rank) == 1 and residuals.shape == (1,)


@pytest.mark.wide
def test_tolerances():
    x = np.diag([1.0, 1e-3, 1e-6])
    assert [int(linalg.matrix_rank(x, rtol=r)) for r in (None, 1e-4, 1e-2)] == [3, 2, 1]
    assert int(linalg.matrix_rank(x, tol=1e-2)) == 1
    np.testing.assert_array_equal(np.asarray(linalg.matrix_rank(np.stack([x, x]), rtol=np.array([1e-4, 1e-2]))), [2, 1])
    np.testing.assert_allclose(np.asarray(linalg.pinv(x, rtol=1e-4)), np.diag([1, 1e3, 0]), atol=1e-9)
    assert int(linalg.matrix_rank(np.zeros(3))) == 0 and int(linalg.matrix_rank(np.float32(2))) == 1


@pytest.mark.wide
def test_singular_matrices():
    x = np.ones((2, 2))
    assert np.isinf(float(linalg.cond(x, 1))) or float(linalg.cond(x, 1)) > 1e15
    assert tuple(map(float, linalg.slogdet(x))) == (0, -np.inf)
    assert not np.isfinite(np.asarray(linalg.inv(x))).any()
    for p in (None, 2, -2, 1, "fro"):
        assert np.isnan(float(linalg.cond(np.full((2, 2), np.nan), p)))
        stacked = linalg.cond(np.stack([np.zeros((2, 2)), np.eye(2)]), p)
        np.testing.assert_allclose(np.asarray(stacked), np.linalg.cond(np.stack([np.zeros((2, 2)), np.eye(2)]), p), rtol=1e-12)


# Stages.


@pytest.mark.wide
@pytest.mark.parametrize("name", ["det", "inv", "pinv", "slogdet", "eigvalsh", "cholesky", "matrix_rank", "norm"])
def test_stages_agree(name):
    function, x = getattr(linalg, name), positive(3, 4, 4)
    each = [function(m) for m in x]
    for got in (vf.vmap(function)(x), vf.jit(vf.vmap(function))(x)):
        for g, e in zip(vf.tree.leaves(got), vf.tree.leaves(vf.tree.map(lambda *s: np.stack(s), *each)), strict=True):
            np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=1e-12, atol=1e-12)


@pytest.mark.wide
def test_multiplies_chains_in_the_cheapest_order():
    program = vf.jit(lambda *m: linalg.multi_dot(m)).lower(*[np.ones(s) for s in ((10, 100), (100, 5), (5, 50))]).jaxpr
    products = [eqn.outvars[0].aval.shape for eqn in program.eqns if eqn.primitive.name == "dot_general"]
    assert products == [(10, 5), (10, 50)]


def test_the_module_has_every_name_of_jax():
    jax_linalg = pytest.importorskip("jax.numpy").linalg
    missing = {n for n in dir(jax_linalg) if not n.startswith("_") and callable(getattr(jax_linalg, n))} - set(dir(linalg))
    assert not missing


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linalg.inv(np.ones((2, 3))), errors.ShapeError, r"inv: a must have square matrices .* got shape \(2, 3\)"),
        (lambda: linalg.det(np.ones(3)), errors.ShapeError, r"det: a must be a matrix .* got shape \(3,\)"),
        (lambda: linalg.solve(np.eye(3), np.ones(2)), errors.ShapeError, r"solve: b must have 3 rows.*\(3, 3\).*got shape \(2,\)"),
        (lambda: linalg.qr(np.eye(2), "full"), errors.ArgumentError, "got 'full'"),
        (lambda: linalg.eigh(np.eye(2), "X"), errors.ArgumentError, "UPLO must be None, 'L' or 'U', got 'X'"),
        (lambda: linalg.svd(np.eye(2), subset_by_index=(0, 1)), errors.ArgumentError, "slice the result"),
        (lambda: linalg.slogdet(np.eye(2), method="x"), errors.ArgumentError, "None, 'lu' or 'qr'"),
        (lambda: linalg.norm(np.ones((2, 2)), "x"), errors.ArgumentError, "order of a matrix norm.*got 'x'"),
        (lambda: linalg.norm(np.ones(2), "fro"), errors.ArgumentError, "order of a vector norm must be a number, got 'fro'"),
        (lambda: linalg.norm(np.ones((2, 2, 2)), 2), errors.ShapeError, r"vector or a matrix, got shape \(2, 2, 2\)"),
        (lambda: linalg.norm(np.ones((2, 2, 2)), axis=(0, 1, 2)), errors.ArgumentError, "pair of them"),
        (lambda: linalg.multi_dot([np.eye(2)]), errors.ArgumentError, "at least two arrays, got 1"),
        (lambda: linalg.multi_dot([np.eye(2), np.ones(2), np.eye(2)]), errors.ShapeError, r"\(2, 2\), \(2,\), \(2, 2\)"),
        (lambda: linalg.outer(np.eye(2), np.ones(2)), errors.ShapeError, "takes vectors"),
        (lambda: linalg.cross(np.ones(2), np.ones(2)), errors.ShapeError, "three components"),
        (lambda: linalg.matrix_power(np.ones((2, 3)), 2), errors.ShapeError, "square"),
        (lambda: linalg.matrix_rank(np.eye(2), 1.0, tol=1.0), errors.ArgumentError, "not both"),
        (lambda: linalg.pinv(np.eye(2), 1.0, rcond=1.0), errors.ArgumentError, "two names of one argument"),
        (lambda: linalg.lstsq(np.eye(2), np.ones(3)), errors.ShapeError, r"\(2, 2\) and \(3,\)"),
        (lambda: linalg.tensorinv(np.ones((2, 3))), errors.ShapeError, r"got shape \(2, 3\)"),
        (lambda: linalg.tensorinv(np.ones((2, 3)), 0), errors.ArgumentError, "positive, got 0"),
        (lambda: linalg.tensorsolve(np.ones((2, 3)), np.ones(2)), errors.ShapeError, r"got shape \(2, 3\)"),
        (lambda: linalg.inv(np.eye(2, dtype=np.float16)), errors.DTypeError, "float16|f16"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_greatest_of_no_sizes_is_zero() -> None:
    assert linalg.vector_norm(np.zeros(0, np.complex64), ord=np.inf) == 0
    assert linalg.matrix_norm(np.zeros((0, 2), np.float32), ord=np.inf) == 0
    assert linalg.matrix_norm(np.zeros((2, 0), np.float32), ord=1) == 0
    for shape in ((0, 2), (2, 0), (0, 0)):
        assert [float(linalg.matrix_norm(np.zeros(shape, np.float32), ord=p)) for p in ("fro", "nuc", 1, 2, np.inf)] == [0] * 5


@pytest.mark.parametrize("shape", [(2, 30_000), (30_000, 2)])
def test_derivatives_of_pseudo_inverses_of_long_matrices(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    _, tangent = vf.jvp(linalg.pinv, (x,), (x,))  # of the inverse by the scale: -1 times it
    np.testing.assert_allclose(tangent, -np.asarray(linalg.pinv(x)), rtol=1e-3, atol=1e-8)


def test_sign_of_a_determinant_with_nan_is_that_of_jax():
    jax = pytest.importorskip("jax")
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((5, 5)).astype("float32")
        x[0, seed] = np.nan
        sign, logarithm = vf.jit(vf.numpy.linalg.slogdet)(x)
        assert abs(float(sign)) == 1 and np.isnan(logarithm)
        assert float(sign) == float(vf.numpy.linalg.slogdet(x)[0]) == float(jax.numpy.linalg.slogdet(x)[0])
