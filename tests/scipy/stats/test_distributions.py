"""Every function of every distribution, compared with SciPy's."""

from __future__ import annotations

import inspect
import types

import jax.scipy.stats
import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.scipy.stats.distributions import (
    CONTINUOUS,
    DISCRETE,
    FUNCTIONS,
    QUANTILES,
    SMOOTH,
    UNDERFLOWING,
    arguments,
    bound,
    functions,
    ours,
    scipys,
)
from volta_fn.scipy import stats

CASES = CONTINUOUS | DISCRETE
EVERY = list(functions(CASES))
#: Roundings that a formula may have. SciPy's own values are off by 1e-12 here and there.
ROUNDINGS = {np.float32: 16 * 1.2e-7, np.float64: 1e-12}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, function", EVERY)
def test_values_are_scipys(name, function, dtype):
    info, is_log = np.finfo(dtype), function.startswith("log")
    for shape in CASES[name].shapes:
        args = arguments(CASES[name], function, shape, dtype)
        expected = scipys(name, function)(*[a.astype(float) for a in args])
        result = np.asarray(ours(name, function)(*args))
        assert result.dtype == dtype
        held = np.abs(expected) < info.max
        if name in UNDERFLOWING and is_log:
            held &= expected > -690
        allowed = ROUNDINGS[dtype] / info.eps * bound(scipys(name, function), args, is_log, float(info.eps)) + float(info.tiny)
        off = np.abs(result.astype(float)[held] - expected[held])
        assert np.all(off <= allowed[held]), (shape, args[0][held][off > allowed[held]], off[off > allowed[held]])
        infinite = ~np.isfinite(expected) & (not is_log or name not in UNDERFLOWING)
        np.testing.assert_array_equal(result[infinite], expected[infinite].astype(dtype))


@pytest.mark.wide
@pytest.mark.parametrize("name, function", EVERY)
def test_location_and_scale(name, function):
    """Also all parameters broadcast, by position and by name."""
    case = CASES[name]
    accepted = inspect.signature(ours(name, function)).parameters
    x, *shape = arguments(case, function, case.shapes[-1], np.float64)
    operands = {"loc": np.array([[0.0], [2.0]]), "scale": np.array([[0.5], [3.0]])}
    operands = {key: value for key, value in operands.items() if key in accepted}
    result = ours(name, function)(x, *shape, **operands)
    np.testing.assert_allclose(result, ours(name, function)(x, *shape, *operands.values()), rtol=0)
    expected = scipys(name, function)(x, *shape, **operands)
    retained = np.isfinite(expected) & (expected > -690) & (np.abs(expected) > 1e-290)
    np.testing.assert_allclose(
        np.broadcast_to(result, expected.shape)[retained], expected[retained], rtol=2e-11, atol=1e-11
    )  # x - loc is rounded


def smooth_points(name: str, function: str) -> list[np.ndarray]:
    """Return arguments with derivatives and without extreme values."""
    case = CASES[name]
    x, *rest = arguments(case, function, SMOOTH.get(name, case.shapes[-1]), np.float64)
    x = np.array([0.1, 0.35, 0.6, 0.9]) if function in QUANTILES or case.points.max() < 1 else np.array([1.13, 1.4, 1.9])
    if name in DISCRETE:
        x = np.array([0.0, 1.0]) if name == "bernoulli" else np.array([1.0, 3.0, 7.0])
    return [x, *[np.full(x.shape, r) for r in rest]]


@pytest.mark.wide
@pytest.mark.parametrize("name, function", EVERY)
def test_slopes_are_those_of_scipys_values(name, function):
    """Differentiate by all arguments but counts; central differences are good to 1e-6."""
    if (name, function) == ("bernoulli", "ppf"):
        return  # a step function
    args = smooth_points(name, function)
    parameters = list(inspect.signature(ours(name, function)).parameters)
    named = {"loc": np.full(args[0].shape, -0.02), "scale": np.full(args[0].shape, 1.1)}
    if name not in DISCRETE:
        args += [named[p] for p in parameters if p in named]
    wanted = tuple(i for i in range(len(args)) if parameters[i] not in ("k", "n"))
    gradient = vf.vmap(vf.grad(ours(name, function), wanted))(*args)
    for i, slopes in zip(wanted, gradient, strict=True):
        step = 1e-6
        ends = [scipys(name, function)(*args[:i], args[i] + s * step, *args[i + 1 :]) for s in (1, -1)]
        np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=2e-7, err_msg=parameters[i])


@pytest.mark.parametrize("name, function", EVERY)
def test_jit_and_vmap(name, function):
    args = [a.astype(np.float32) for a in smooth_points(name, function)]
    eager = ours(name, function)(*args)
    np.testing.assert_allclose(vf.jit(ours(name, function))(*args), eager, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(vf.vmap(ours(name, function))(*args), eager, rtol=1e-6, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("name, function", [pair for pair in EVERY if pair[1] not in QUANTILES])
def test_outside_the_support(name, function):
    shape = CASES[name].shapes[-1]
    x = np.array([-np.inf, -1e4, -7.5, 0.0, 0.5, 1.0, 2 * np.pi + 0.1, 1e6 + 0.5, np.inf, np.nan])
    expected = scipys(name, function)(x, *shape)
    expected[[0, -2]] = {"cdf": [0, 1], "sf": [1, 0], "logcdf": [-np.inf, 0], "logsf": [0, -np.inf]}.get(
        function, -np.inf if function.startswith("log") else 0.0
    )  # SciPy's densities are NaN at some infinities
    if function.startswith("log") and (name in UNDERFLOWING or name in ("gumbel_l", "gumbel_r", "laplace")):
        comparable = np.isfinite(expected) | ~np.isfinite(x) | (x == 0)  # SciPy's are infinite where they underflow, ours are not
        x, expected = x[comparable], expected[comparable]
    np.testing.assert_allclose(ours(name, function)(x, *shape), expected, rtol=1e-10, atol=1e-300)


@pytest.mark.wide
@pytest.mark.parametrize("name, function", EVERY)
def test_slopes_are_finite_outside_the_support_and_at_its_ends(name, function):
    """Unless the function itself is infinite there."""
    shape = next(s for s in CASES[name].shapes if np.isfinite(s).all())
    inside = np.array([0.0, 1.0]) if function in QUANTILES else np.array([-1e3, -1.0, 0.0, 0.5, 1.0, 2.0, 1e3, 2 * np.pi])
    args = [inside, *[np.full(inside.shape, s, float) for s in shape]]
    values = ours(name, function)(*args)
    for slopes in vf.vmap(vf.grad(ours(name, function), tuple(range(len(args)))))(*args):
        assert np.all(np.isfinite(slopes) | ~np.isfinite(values)), (inside, slopes)


INVALID = {
    "bernoulli": [(-0.1,), (1.5,)], "beta": [(0, 1), (1, -1)], "betabinom": [(-1, 1, 1), (2.5, 1, 1), (3, 0, 1), (3, 1, -2)],
    "binom": [(-1, 0.5), (3.5, 0.5), (3, -0.1), (3, 1.1)], "chi2": [(0,), (-1,)], "gamma": [(0,), (-1,)], "gennorm": [(0,), (-1,)],
    "geom": [(0,), (1.1,)], "nbinom": [(0, 0.5), (3, 0), (3, 1.1)], "pareto": [(0,), (-1,)], "poisson": [(-1,)], "t": [(0,), (-1,)],
    "truncnorm": [(1, 1), (2, 1)], "vonmises": [(-1,)], "wrapcauchy": [(0,), (1,)],
}  # fmt: skip


@pytest.mark.parametrize("name, function", EVERY)
def test_invalid_parameters_give_nan(name, function):
    x = np.array([0.5, 1.0], np.float32)
    count = len(CASES[name].shapes[0])
    for shape in [*INVALID.get(name, []), *([(np.nan,) * count] if count else [])]:
        assert np.isnan(ours(name, function)(x, *shape)).all(), shape
    if "scale" in inspect.signature(ours(name, function)).parameters:
        for scale in (0.0, -1.0, np.nan):
            assert np.isnan(ours(name, function)(x, *CASES[name].shapes[0], scale=scale)).all()
    assert np.isnan(ours(name, function)(np.float32(np.nan), *CASES[name].shapes[0]))
    if function in QUANTILES:
        assert np.isnan(ours(name, function)(np.array([-0.1, 1.1], np.float32), *CASES[name].shapes[0])).all()


@pytest.mark.parametrize("name, function", EVERY)
def test_dtypes(name, function):
    """Integers become floats, small floats stay small, and Python's numbers stay weak."""
    shape = CASES[name].shapes[0]
    x = np.array([0, 1], np.int32)
    assert ours(name, function)(x, *shape).dtype == np.float32
    assert ours(name, function)(np.zeros((0, 3), np.float32), *shape).shape == (0, 3)
    assert ours(name, function)(1, *shape).weak_type
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        small = np.array([0.5, 1], dtype)
        result = ours(name, function)(small, *shape)
        assert result.dtype == dtype
        expected = np.asarray(ours(name, function)(small.astype(np.float32), *np.array(shape, dtype).astype(np.float32)))
        np.testing.assert_allclose(np.asarray(result).astype(float), expected, rtol=float(ml_dtypes.finfo(dtype).eps))


def test_every_function_has_jaxs_signature():
    modules = {name: module for name, module in vars(jax.scipy.stats).items() if isinstance(module, types.ModuleType)}
    modules = {name: module for name, module in modules.items() if not name.startswith("_")}
    assert len(modules) == 26
    for name, module in modules.items():
        for function in [f for f in dir(module) if not f.startswith("_")]:
            theirs, mine = (inspect.signature(getattr(m, function)).parameters for m in (module, getattr(stats, name)))
            assert [(p.name, p.default) for p in theirs.values()] == [(p.name, p.default) for p in mine.values()], (name, function)
    for function in ("mode", "rankdata", "sem"):
        theirs, mine = (inspect.signature(getattr(m, function)).parameters for m in (jax.scipy.stats, stats))
        assert [(p.name, p.default, p.kind) for p in theirs.values()] == [(p.name, p.default, p.kind) for p in mine.values()]


def test_functions_describe_themselves():
    assert set(FUNCTIONS) >= {function for _, function in EVERY}
    for name, function in EVERY:
        public = ours(name, function)
        assert (public.__name__, public.__module__) == (function, f"volta_fn.scipy.stats.{name}")
        assert public.__doc__.startswith("Return the ")
        assert "Array" in str(inspect.signature(public))


@pytest.mark.wide
def test_tails_where_scipy_underflows():
    x = np.array([1000.0, 5000.0])
    np.testing.assert_allclose(stats.laplace.logpdf(x), -x - np.log(2), rtol=1e-15)
    np.testing.assert_allclose(stats.gumbel_l.logcdf(-x), -x, rtol=1e-15)
    np.testing.assert_allclose(stats.gumbel_r.logsf(x), -x, rtol=1e-15)
    np.testing.assert_allclose(stats.expon.logcdf(1 / x), np.log(-np.expm1(-1 / x)), rtol=1e-14)
    np.testing.assert_allclose(stats.cauchy.logpdf(np.array([1e200])), -np.log(np.pi) - 400 * np.log(10), rtol=1e-15)


#: With large parameters, and far out in the tails, logs of probabilities and densities by mpmath.
FAR = {
    "poisson.logpmf": ((1000200, 1e6), -7.84679255230479692),
    "binom.logpmf": ((500500, 1e6, 0.5), -7.63354646496031448),
    "nbinom.logpmf": ((1000300, 1e6, 0.5), -8.19598912491861155),
    "gamma.logpdf": ((1000500, 1e6), -7.95215211951388011),
    "gamma.logcdf": ((1, 2000), -13207.523850638890),
    "chi2.logsf": ((10000, 3), -4995.6205211816523),
    "beta.logcdf": ((2**-7, 300, 200), -1124.8883217858936),
    "beta.logsf": ((1 - 2**-7, 200, 300), -1124.8883217858936),
    "beta.logpdf": ((0.5 + 2**-12, 1e6, 1e6), 6.790119022512713349),
}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FAR)
def test_values_far_out_by_mpmath(name, dtype):
    """Do not subtract logs of gamma functions of 1e6, which leaves float32 no digits, nor take logs of 0."""
    args, expected = FAR[name]
    distribution, function = name.split(".")
    rtol = 2e-6 if dtype == np.float32 else 1e-13  # some roundings; SciPy's are off by 1e-10
    np.testing.assert_allclose(ours(distribution, function)(*np.array(args, dtype)), expected, rtol=rtol)


@pytest.mark.wide
def test_the_beta_density_of_subnormal_numbers():
    mpmath = pytest.importorskip("mpmath")
    for x, a, b in ((1e-310, 1.0, 5.0), (1e-310, 0.25, 3.0), (1e-310, 1e-3, 1.0), (1e-300, 1.0, 1.0), (1e-310, 3.0, 0.5)):
        with mpmath.workdps(30):
            exact = mpmath.mpf(x) ** (a - 1) * (1 - mpmath.mpf(x)) ** (b - 1) / mpmath.beta(a, b)
        for pdf in (ours("beta", "pdf"), vf.jit(ours("beta", "pdf"))):
            np.testing.assert_allclose(pdf(np.float64(x), a, b), float(exact), rtol=1e-12)


#: Shape parameters of densities that were exponentials of their logs, which lost as many units as those were large.
DENSITIES: dict[str, tuple[tuple[float, ...], ...]] = {
    "norm": ((),), "expon": ((),), "laplace": ((),), "logistic": ((),), "cauchy": ((),), "t": ((0.5,), (3,), (40,), (3000,), (np.inf,)),
    "gamma": ((0.3,), (4.5,), (300,), (5000,)), "chi2": ((1,), (9,), (700,)), "beta": ((0.5, 3), (40, 3), (3000, 900)),
    "poisson": ((8,), (160,), (990,)), "binom": ((21, 1e-3), (1000, 0.15), (1500, 0.7)), "nbinom": ((0.5, 0.3), (200, 0.5), (900, 0.6)),
    "geom": ((1e-3,), (0.4,)),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("name", DENSITIES)
def test_densities_in_float32_are_off_by_four_units(name: str) -> None:
    """Also moved and stretched, where (x - loc) / scale is no float32."""
    rng = np.random.default_rng(0)
    function = "pmf" if name in DISCRETE else "pdf"
    for shape in DENSITIES[name]:
        shapes = [np.float32(s) for s in shape]
        quantiles = scipys(name, "ppf")(rng.random(300), *[float(s) for s in shapes])
        far = quantiles**4 if name == "beta" else quantiles * np.exp2(rng.uniform(-4, 4, quantiles.size))
        z = np.concatenate([quantiles, far]).astype(np.float32)
        for loc, scale in [(0, 1)] if name in DISCRETE else [(0, 1), (-0.7, 0.037), (0.3, 1700)]:
            located = [] if name in DISCRETE else [np.float32(loc), np.float32(scale)]
            x = np.round(z) if name in DISCRETE else z * located[1] + located[0]
            expected = scipys(name, function)(x.astype(float), *[float(v) for v in (*shapes, *located)])
            normal = (expected > 1.2e-38) & (expected < 3e38)
            off = np.abs(np.asarray(ours(name, function)(x, *shapes, *located)).astype(float)[normal] - expected[normal])
            unit = np.spacing(expected[normal].astype(np.float32)).astype(float)
            assert np.all(off <= 4 * unit), (shape, loc, scale, (off / unit).max())


@pytest.mark.parametrize(
    ("name", "args", "slope"),
    [
        ("gamma", (0.0, 1.0), -1), ("gamma", (0.0, 2.0), 1), ("gamma", (0.0, 3.0), 0), ("gamma", (0.0, 1.5), np.inf),
        ("beta", (0.0, 1.0, 3.0), -6), ("beta", (1.0, 3.0, 1.0), 6), ("norm", (1e30,), 0), ("cauchy", (1e30,), 0), ("t", (0.0, np.inf), 0),
    ],
)  # fmt: skip
def test_slopes_of_densities_at_the_ends(name: str, args: tuple[float, ...], slope: float) -> None:
    assert float(vf.grad(getattr(stats, name).pdf)(*map(np.float32, args))) == pytest.approx(slope, abs=1e-6)


@pytest.mark.wide
def test_entropy_of_poisson():
    mu = np.array([0.0, 1e-3, 0.5, 3.0, 20.0, 49.9, 50.0, 80.0, 1e3])
    expected = [scipys("poisson", "entropy")(m) for m in mu]
    np.testing.assert_allclose(stats.poisson.entropy(mu), expected, rtol=1e-11)  # SciPy sums up to its tolerance
    assert np.isnan(stats.poisson.entropy(-1.0))
    slopes = vf.vmap(vf.grad(stats.poisson.entropy))(mu[2:])
    ends = [stats.poisson.entropy(mu[2:] * (1 + s * 1e-6)) for s in (1, -1)]
    np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / (2e-6 * mu[2:]), rtol=1e-5)


@pytest.mark.parametrize("scale", [3.0, 1e-30, 1e30, 7e37])
def test_uniform_densities_are_reciprocals(scale: float) -> None:
    density = stats.uniform.pdf(np.float32(scale / 2), np.float32(0), np.float32(scale))
    assert density == np.float32(1) / np.float32(scale)
