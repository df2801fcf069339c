"""Every public name of `scipy.special` against SciPy's function: float64 to 4e-12, float32 to 4 roundings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax.scipy.special
import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from volta_fn import errors
from volta_fn.lazy_imports import public_names
from volta_fn.scipy import special

_RNG = np.random.default_rng(0)


def between(low: float, high: float, count: int = 40) -> np.ndarray:
    return _RNG.uniform(low, high, count)


def powers(low: float, high: float, count: int = 40) -> np.ndarray:
    return 10.0 ** _RNG.uniform(low, high, count)


def signed(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


POSITIVE = np.concatenate([between(0.1, 12), powers(-3, 1.5)])
REAL = signed(POSITIVE)
SHARES = between(0.01, 0.99)
INTEGERS = np.arange(1.0, 21.0)

#: The arguments of each elementwise function.
ARGUMENTS: dict[str, tuple[np.ndarray, ...]] = {
    "beta": (between(0.1, 8), between(0.1, 8)),
    "betainc": (between(0.2, 8), between(0.2, 8), SHARES),
    "betaln": (between(0.1, 30), between(4, 30)),
    "boxcox": (between(2.0, 9), between(0.1, 2)),
    "boxcox1p": (between(1.0, 9), between(0.1, 2)),
    "comb": (INTEGERS + 10, INTEGERS),
    "dawsn": (REAL,),
    "digamma": (between(2, 50),),
    "entr": (between(2, 9),),
    "erf": (REAL,),
    "erfc": (between(-5, 5),),
    "erfcx": (between(-5, 30),),
    "erfcinv": (between(0.05, 1.95),),
    "erfinv": (between(-0.95, 0.95),),
    "exp1": (between(0.05, 20),),
    "expi": (between(0.8, 30),),
    "expit": (between(-15, 20),),
    "expn": (INTEGERS, between(0.1, 10, 20)),
    "exprel": (signed(np.concatenate([between(0, 8), powers(-8, 0)])),),
    "factorial": (INTEGERS,),
    "gamma": (np.concatenate([between(0.2, 30), between(-4.9, -0.1) // 1 + 0.4]),),
    "gammainc": (between(0.2, 20), between(0.5, 20)),
    "gammaincc": (between(0.2, 20), between(0.5, 20)),
    "gammaln": (between(3, 200),),
    "gammasgn": (REAL,),
    "hyp1f1": (between(0.2, 5), between(0.3, 6), np.concatenate([between(-40, 40, 20), signed(between(110, 200, 10))])),
    "hyp2f1": (between(0.2, 3), between(0.2, 3), between(0.3, 5), np.concatenate([between(-9, 0.75, 20), between(0.75, 0.99, 20)])),
    "i0": (between(-20, 20),),
    "i0e": (between(-20, 20),),
    "i1": (between(-20, 20),),
    "i1e": (between(-20, 20),),
    "kl_div": (between(3, 9), between(0.5, 1.5)),
    "log_expit": (between(-30, 15),),
    "log_ndtr": (between(-30, 5),),
    "logit": (between(0.01, 0.3),),
    "loggamma": (between(3, 200),),
    "ndtr": (between(-8, 8),),
    "ndtri": (between(0.01, 0.4),),
    "owens_t": (np.concatenate([between(-5, 5), between(5, 9)]), np.concatenate([between(-3, 3), powers(-3, 2)])),
    "poch": (between(0.5, 8), between(0.1, 5)),
    "polygamma": (INTEGERS % 5 + 1, between(0.5, 9, 20)),
    "rel_entr": (between(3, 9), between(0.5, 1.5)),
    "softplus": (between(-15, 30),),
    "spence": (np.concatenate([between(0, 0.9), between(1.1, 3), powers(0.5, 5)]),),
    "xlog1py": (between(1, 9), between(1, 9)),
    "xlogy": (between(1, 9), between(2, 9)),
    "zeta": (between(1.1, 20), between(0.2, 5)),
}

#: S and C far away, by mpmath: SciPy rounds the phases there.
FRESNEL_FAR = ([0.4996817612052057, 0.499996848666686], [0.5000049991932007, 0.5000004485040868])

#: Sums and continued fractions of some ten rounded terms: float32 roundings.
ROUNDINGS = {"betainc": 6.0, "expn": 6.0, "gammaincc": 6.0}
if vf.default_backend() == "gpu":  # gamma functions are computed in float32, and compilers may simplify the error of a rounded sum
    ROUNDINGS |= {"beta": 16.0, "betainc": 16.0, "gammainc": 6.0, "poch": 16.0}

#: Functions of other arguments than elementwise ones, with a test of their own.
OTHERS = set("bernoulli bessel_jn fresnel log_softmax logsumexp lpmn lpmn_values multigammaln sici softmax sph_harm_y wofz".split())


def test_every_name_has_a_test() -> None:
    assert set(ARGUMENTS) | OTHERS == set(public_names(special.__name__))
    assert not OTHERS & set(ARGUMENTS)
    assert all(f"test_{name}" in globals() for name in OTHERS)


def test_every_name_of_jax_is_there() -> None:
    assert {name for name in dir(jax.scipy.special) if not name.startswith("_")} <= set(dir(special))


def roundings(got: Any, wanted: Any, dtype: Any) -> float:
    """Return the largest relative error, in the dtype's epsilon, of what is a normal number."""
    info = np.finfo(dtype)
    normal = (np.abs(wanted) > info.tiny) & (np.abs(wanted) < info.max)
    assert np.asarray(got).dtype == dtype
    return float(np.max(np.abs(np.asarray(got)[normal].astype(float) / wanted[normal] - 1.0), initial=0.0) / info.eps)


@pytest.mark.wide
@pytest.mark.parametrize("name", ARGUMENTS)
def test_float64_to_4e_12(name: str) -> None:
    got, wanted = (np.asarray(getattr(module, name)(*ARGUMENTS[name])) for module in (special, scipy.special))
    assert roundings(got, np.real(wanted), np.float64) * np.finfo(float).eps < 4e-12


@pytest.mark.parametrize("name", ARGUMENTS)
def test_float32_to_4_roundings(name: str) -> None:
    xs = [x.astype(np.float32) for x in ARGUMENTS[name]]
    wanted = np.real(getattr(scipy.special, name)(*[x.astype(float) for x in xs]))
    limit = ROUNDINGS.get(name, 4.0)
    assert roundings(getattr(special, name)(*xs), wanted, np.float32) <= limit
    assert roundings(vf.jit(getattr(special, name))(*xs), wanted, np.float32) <= limit


@pytest.mark.parametrize("name", ARGUMENTS)
def test_empty_and_broadcast_arguments(name: str) -> None:
    empty = [np.zeros((0, 2), np.float32)] * len(ARGUMENTS[name])
    assert getattr(special, name)(*empty).shape == (0, 2)
    first, *rest = [x[:3].astype(np.float32) for x in ARGUMENTS[name]]
    got = np.asarray(getattr(special, name)(first[:, None], *rest))
    assert got.shape == ((3, 3) if rest else (3, 1))
    np.testing.assert_allclose(vf.vmap(getattr(special, name))(first, *rest), np.diag(got) if rest else got[:, 0], rtol=1e-6)


def pairs_agree(name: str, x: np.ndarray) -> None:
    wanted = getattr(scipy.special, name)(x)
    for got, expected in zip(getattr(special, name)(x), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=4e-12, atol=1e-15)
    single = x.astype(np.float32)
    for got, expected in zip(vf.jit(getattr(special, name))(single), getattr(scipy.special, name)(single.astype(float)), strict=True):
        assert roundings(got, expected, np.float32) <= 4


@pytest.mark.wide
def test_fresnel() -> None:
    pairs_agree("fresnel", REAL)
    np.testing.assert_allclose(special.fresnel(np.array([1e3 + 0.1, 1e5 + 0.3])), FRESNEL_FAR, rtol=1e-15)


@pytest.mark.wide
def test_sici() -> None:
    pairs_agree("sici", REAL)
    np.testing.assert_array_equal(special.sici(np.array([0.0, -np.inf]))[1], [-np.inf, np.nan])


@pytest.mark.wide
def test_wofz() -> None:
    x, y = np.concatenate([between(0, 12), powers(-8, 2)]), np.concatenate([between(-2, 9), powers(-12, 2)])
    for z in (x + 1j * y, -x + 1j * y):
        got, wanted = np.asarray(special.wofz(z)), scipy.special.wofz(z)
        np.testing.assert_allclose(got.real, wanted.real, rtol=4e-12)
        np.testing.assert_allclose(got.imag, wanted.imag, rtol=4e-12)
        single = z.astype(np.complex64)
        got, wanted = np.asarray(vf.jit(special.wofz)(single)), scipy.special.wofz(single.astype(complex))
        assert max(roundings(got.real, wanted.real, np.float32), roundings(got.imag, wanted.imag, np.float32)) <= 4
    assert special.wofz(np.float32(1)).dtype == np.complex64
    at = 0.7 + 0.4j
    slope = vf.grad(special.wofz, holomorphic=True)(np.complex128(at))
    np.testing.assert_allclose(slope, 2j / np.sqrt(np.pi) - 2 * at * scipy.special.wofz(at), rtol=1e-13)


@pytest.mark.wide
def test_wofz_at_infinity() -> None:
    x, y = np.array([np.inf, 1.0, np.inf, 0.0, np.nan]), np.array([1.0, np.inf, -2.0, -np.inf, 1.0])
    got = np.asarray(special.wofz(np.stack([x, y], -1).view(complex)[:, 0]))
    np.testing.assert_allclose(got.real, [0, 0, 0, np.inf, np.nan], atol=1e-300)  # the least numbers are as good as 0


@pytest.mark.wide
def test_bernoulli() -> None:
    np.testing.assert_allclose(special.bernoulli(40, dtype="float64"), scipy.special.bernoulli(40), rtol=4e-12)
    assert [special.bernoulli(n).shape for n in (0, 1, 2)] == [(1,), (2,), (3,)]
    assert np.isinf(special.bernoulli(300, dtype="float64")[300])


@pytest.mark.wide
def test_bessel_jn() -> None:
    z = np.concatenate([[0.0, 1e-8], between(-20, 20)])
    wanted = np.stack([scipy.special.jv(k, z) for k in range(6)])
    np.testing.assert_allclose(special.bessel_jn(z, v=5), wanted, rtol=1e-12, atol=1e-13)
    # The argument's rounding, of 20 to 1e-6, and some 50 of the recurrence.
    np.testing.assert_allclose(special.bessel_jn(z.astype(np.float32), v=5), wanted, rtol=1e-4, atol=3e-6)
    slope = vf.vmap(vf.grad(lambda x: special.bessel_jn(x, v=1)[1]))(z)
    np.testing.assert_allclose(slope, scipy.special.jvp(1, z), rtol=1e-11, atol=1e-12)


@pytest.mark.wide
def test_lpmn() -> None:
    z = np.concatenate([between(-0.99, 0.99, 8), [0.0, 1.0, -1.0]])
    values, slopes = special.lpmn(4, 6, z)
    for m in range(5):
        for n in range(7):
            wanted, wanted_slope = (np.asarray(x) for x in scipy.special.assoc_legendre_p(n, m, z, diff_n=1))
            np.testing.assert_allclose(values[m, n], wanted, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(slopes[m, n], wanted_slope if n >= m else np.zeros(11), rtol=1e-10, atol=1e-10)


@pytest.mark.wide
def test_lpmn_values() -> None:
    z = between(-0.99, 0.99, 8)
    np.testing.assert_array_equal(special.lpmn_values(3, 5, z, False), special.lpmn(3, 5, z)[0])
    for m in range(4):
        wanted = np.stack([scipy.special.sph_harm_y(n, m, np.arccos(z), 0.0).real for n in range(6)])
        np.testing.assert_allclose(special.lpmn_values(3, 5, z, True)[m], wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.wide
def test_sph_harm_y() -> None:
    n, m = (x.ravel()[:, None] for x in np.mgrid[0:6, -6:7].astype(np.int32))
    theta, phi = between(0.1, 3, 7), between(0, 6, 7)
    wanted = scipy.special.sph_harm_y(n, m, theta, phi)
    np.testing.assert_allclose(special.sph_harm_y(n, m, theta, phi), wanted, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(vf.jit(lambda *xs: special.sph_harm_y(*xs, n_max=5))(n, m, theta, phi), wanted, rtol=1e-11, atol=1e-14)
    real = lambda angle: special.sph_harm_y(n, m, angle, phi).real.sum()
    step = 1e-6
    np.testing.assert_allclose(vf.grad(real)(theta[0]), (real(theta[0] + step) - real(theta[0] - step)) / (2 * step), rtol=1e-7)


@pytest.mark.wide
def test_multigammaln() -> None:
    a = between(2, 9)
    np.testing.assert_allclose(special.multigammaln(a, 3), [scipy.special.multigammaln(v, 3) for v in a], rtol=4e-12)


def sums_agree(name: str) -> None:
    x = between(-9, 9, 24).reshape(2, 3, 4)
    for axis in (None, 0, (0, 2)):
        np.testing.assert_allclose(getattr(special, name)(x, axis=axis), getattr(scipy.special, name)(x, axis=axis), rtol=4e-12)


@pytest.mark.wide
def test_softmax() -> None:
    sums_agree("softmax")


@pytest.mark.wide
def test_log_softmax() -> None:
    sums_agree("log_softmax")


@pytest.mark.wide
def test_logsumexp() -> None:
    sums_agree("logsumexp")


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["dawsn", "spence", "owens_t", "hyp1f1", "hyp2f1", "exprel", "softplus", "log_expit", "gamma", "factorial"]
)
def test_slopes_match_differences(name: str) -> None:
    function, xs = getattr(special, name), [x[:12] for x in ARGUMENTS[name]]
    for i in range(len(xs)):
        step = 1e-6 * np.maximum(np.abs(xs[i]), 1e-2)
        ends = [[x + sign * step * (j == i) for j, x in enumerate(xs)] for sign in (1, -1)]
        slopes = (np.asarray(function(*ends[0])) - np.asarray(function(*ends[1]))) / (2 * step)
        result = vf.vmap(vf.grad(function, i))(*xs)
        np.testing.assert_allclose(result, slopes, rtol=2e-6, atol=1e-9 * np.abs(slopes).max())


@pytest.mark.wide
def test_slopes_where_terms_cancel() -> None:
    x = np.array([12.0, 1e3, -1e5])
    series = sum(-np.prod(np.arange(1.0, 2 * k, 2)) / (2 * x * x) ** k for k in range(1, 9))
    np.testing.assert_allclose(vf.vmap(vf.grad(special.dawsn))(x), series, rtol=1e-12)
    np.testing.assert_allclose(vf.vmap(vf.grad(special.dawsn))(x.astype(np.float32)), series, rtol=1e-6)
    assert vf.grad(special.exprel)(0.0) == 0.5
    assert vf.grad(special.spence)(1.0) == -1.0


@pytest.mark.wide
def test_hypergeometric_functions_of_special_arguments() -> None:
    rows = [  # a, b, c, x: sums that end, at 1, integers c - a - b, far left, c - a - b close to an integer
        (-3, 2, 1.5, 5.0), (1, 2, 4.5, 0.5), (0.5, 0.5, 2, 1.0), (1, 1, 2, 0.97), (2, 3, 4, 0.99), (1, 1, 1, 0.9), (1, 2, 5, 0.9),
        (1, 2, 6, 0.95), (1.5, 0.5, 2.25, -1e4), (0.3, 0.4, 1.71, 0.98), (1, 2, 3, 1.0),
        (1.5, 2.5, 2, 0.9), (3, 1.5, 0.5, 0.8), (4, -0.5, 0.25, 1.0),
    ]  # fmt: skip
    args = np.array(rows, float).T
    np.testing.assert_allclose(special.hyp2f1(*args), scipy.special.hyp2f1(*args), rtol=4e-12)
    assert np.isnan(special.hyp2f1(1.0, 1.0, 2.0, 1.5))
    rows = [(-3, 2, 50.0), (-2, 0.5, -3e3), (0.5, 1.5, -1e4), (2, 3, 600.0), (1, 1, -0.0), (2.5, 2.5, -30.0), (0, 3, 1e5), (3, 2, 300.0)]
    args = np.array(rows, float).T
    np.testing.assert_allclose(special.hyp1f1(*args), scipy.special.hyp1f1(*args), rtol=4e-12)
    assert np.isnan(special.hyp1f1(np.nan, 1.0, 1.0))
    x = np.array([1.0, -3.0, 60.0, -200.0])  # for equal parameters e^x, as in JAX, below 0 too
    for a in (-2.0, -7.0, 2.5):
        np.testing.assert_allclose(special.hyp1f1(np.full(4, a), a, x), np.exp(x), rtol=1e-14)
    assert special.hyp1f1(np.float32(0), 0.0, 2.0) == 1.0


def hypergeometric_sum(tops: Sequence[float], bottom: float, x: float) -> float:
    """Return the sum of its definition: it ends with a top's zero, or is infinite with the sign of the term at a pole."""
    term = total = Fraction(1)
    for k in range(40):
        top = math.prod([Fraction(a) + k for a in tops]) * Fraction(x)
        if not top:
            return float(total)
        if not Fraction(bottom) + k:
            return math.copysign(math.inf, term * top)
        term *= top / ((Fraction(bottom) + k) * (k + 1))
        total += term
    return float(total)


@pytest.mark.wide
@pytest.mark.parametrize("x", [0.5, -0.5, 0.0, 0.95, -3.0])
def test_hypergeometric_functions_at_poles(x: float) -> None:
    ends = [-3.0, -2.0, -1.0, 0.5, 1.0]
    for c in (-2.0, -1.0):
        tops = np.array([a for a in ends if a != c])  # there it is e^x
        expected = [hypergeometric_sum([a], c, x) for a in tops]
        np.testing.assert_allclose(special.hyp1f1(tops, np.full_like(tops, c), np.full_like(tops, x)), expected, rtol=1e-14)
        a, b = np.array(list(itertools.product(ends, ends))).T
        sums = np.array([hypergeometric_sum(pair, c, x) for pair in zip(a, b, strict=True)])
        expected = np.where(np.isinf(sums), np.inf, sums)  # JAX and SciPy have inf for either sign
        np.testing.assert_allclose(special.hyp2f1(a, b, np.full_like(a, c), np.full_like(a, x)), expected, rtol=1e-13, atol=1e-15)
    assert special.hyp1f1(-2.0, 0.0, x) == special.hyp1f1(1.0, 0.0, x) == np.inf
    assert special.hyp2f1(-2.0, 1.0, 0.0, x) == (1.0 if x == 0 else np.inf)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: special.lpmn(3, 2, np.zeros(1)), errors.ArgumentError, "0 <= m <= n"),
        (lambda: special.lpmn_values(1, 2, np.float32(0), True), errors.ShapeError, "z must be a vector"),
        (lambda: special.sph_harm_y(1, 0, 0.1, 0.2, diff_n=1), errors.ArgumentError, r"vf\.jvp"),
        (lambda: vf.jit(lambda n: special.sph_harm_y(n, 0, 0.1, 0.2))(1), errors.ConcretizationError, "n_max"),
        (lambda: special.bernoulli(-1), errors.ArgumentError, "must not be negative"),
        (lambda: special.bernoulli(1.5), errors.ArgumentTypeError, "must be an integer"),
        (lambda: special.bessel_jn(1.0, v=50), errors.ArgumentError, "0 <= v < n_iter"),
        (lambda: special.dawsn(1j), errors.DTypeError, "complex64"),
    ],
)
def test_mistakes_are_explained(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
