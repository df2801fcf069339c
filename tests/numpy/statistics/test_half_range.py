"""Normalisations in float16 and bfloat16 whose results are representable, but not what is summed on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import nn
from volta_fn.scipy import special

#: More numbers than float16's largest one.
COUNT = 70_000
ONES, ZEROS, CYCLE = np.ones(COUNT), np.zeros(COUNT), np.arange(COUNT) % 7.0
SEGMENTS = np.zeros(COUNT, np.int32)
#: Numbers whose squares exceed float16's range, and such whose squares vanish.
LARGE, SMALL = np.array([300.0, -300.0, 200.0, 250.0]), np.array([2e-4, 1e-4, 3e-4, 1e-4])
MATRIX = np.array([[300.0, -300.0, 10.0], [100.0, -200.0, 300.0]])

CASES: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "max": (vnp.max, ONES),
    "min": (vnp.min, ONES),
    "nanmax": (vnp.nanmax, ONES),
    "segment_max": (lambda x: vf.ops.segment_max(x, SEGMENTS, 1)[0], ONES),
    "segment_min": (lambda x: vf.ops.segment_min(x, SEGMENTS, 1)[0], ONES),
    "norm inf": (lambda x: vnp.linalg.norm(x, np.inf), ONES),
    "logsumexp": (nn.logsumexp, ZEROS),
    "weighted logsumexp": (lambda x: special.logsumexp(x, b=vnp.ones_like(x)), ZEROS),
    "logmeanexp": (nn.logmeanexp, CYCLE),
    "softmax": (lambda x: nn.softmax(x)[:7], CYCLE),
    "log_softmax": (nn.log_softmax, CYCLE),
    "softmin": (lambda x: nn.softmin(x)[:7], CYCLE),
    "special.log_softmax": (special.log_softmax, CYCLE),
    "average": (lambda x: vnp.average(x, weights=vnp.ones_like(x)), ONES),
    "average of large numbers": (lambda x: vnp.average(x, weights=vnp.full_like(x, 2)), np.full(8, 60000.0)),
    "weights of average": (lambda w: vnp.average(vnp.asarray(CYCLE, w.dtype), weights=w), ONES),
    "std": (vnp.std, LARGE),
    "std of small numbers": (vnp.std, SMALL),
    "nanstd": (vnp.nanstd, LARGE),
    "std of many": (vnp.std, CYCLE),
    "var of many": (vnp.var, CYCLE),
    "standardize": (nn.standardize, LARGE),
    "standardize fast": (lambda x: nn.standardize(x, algorithm="fast"), LARGE),
    "norm": (vnp.linalg.norm, LARGE),
    "norm of small numbers": (vnp.linalg.norm, SMALL),
    "norm 3": (lambda x: vnp.linalg.norm(x, 3), LARGE),
    "norm -2": (lambda x: vnp.linalg.norm(x, -2), SMALL),
    "frobenius": (lambda x: vnp.linalg.norm(x, "fro"), MATRIX),
    "vector_norm": (lambda x: vnp.linalg.vector_norm(x, axis=1), MATRIX),
    "matrix_norm": (vnp.linalg.matrix_norm, MATRIX),
    "normalize": (lambda x: nn.normalize(x, axis=0)[0], LARGE),
    "cosine_similarity": (lambda x: nn.cosine_similarity(x[0], x[1]), MATRIX),
    "cov": (vnp.cov, CYCLE),
    "mean of large numbers": (vnp.mean, np.full(60_000, 60_000.0)),
    "trapezoid": (vnp.trapezoid, np.array([60_000.0, 60_000.0, -60_000.0])),
    "trapezoid of far points": (lambda x: vnp.trapezoid(vnp.asarray([0.25, 0.5, 0.125], x.dtype), x), np.array([-60_000.0, 60_000.0, 0.0])),
    "corrcoef": (lambda x: vnp.corrcoef(x)[0, 1], MATRIX),
    "layer norm": (lambda x: nn.LayerNorm.init(4)(x), LARGE),
    "RMS norm": (lambda x: nn.RMSNorm.init(4)(x), LARGE),
    "group norm": (lambda x: nn.GroupNorm.init(1, 2)(x[None]), MATRIX),
}


def _close(actual: Any, wanted: Any, dtype: np.dtype, scale: float) -> None:
    assert actual.dtype == dtype
    digits = 2e-3 if dtype == np.float16 else 2e-2
    np.testing.assert_allclose(np.asarray(actual, np.float64), np.asarray(wanted), rtol=digits, atol=1.2e-7 + digits * scale)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_float64_rounded(case: str, name: str) -> None:
    function, numbers = CASES[case]
    x = vnp.asarray(numbers, name)
    wide = x.astype("float64")
    for compute in (function, vf.jit(function)):
        _close(compute(x), function(wide), x.dtype, 0.0)
    cotangent = vnp.arange(1.0, 1.0 + vnp.size(function(x)), dtype="float64").reshape(vnp.shape(function(x))) % 4
    actual, wanted = (vf.grad(lambda y, d=y.dtype: vnp.sum(function(y) * cotangent.astype(d)))(y) for y in (x, wide))
    _close(actual, wanted, x.dtype, float(vnp.max(vnp.abs(wanted))))


#: Functions that round on the way, which JAX rounds as well: at the edges of the range, and of pairs of numbers from all over it.
FUNCTIONS = (
    *"exp exp2 expm1 sin cos tan tanh sinh cosh arctan arcsinh square reciprocal cbrt sinc rint i0 nan_to_num".split(),
    *"hypot arctan2 logaddexp logaddexp2 remainder divide multiply power copysign diff cumsum cumprod trapezoid median unwrap".split(),
)
ACTIVATIONS = "relu6 sigmoid softplus silu mish log_sigmoid hard_tanh elu celu selu gelu squareplus soft_sign softmax log_softmax".split()
SPECIAL = "erf erfc expit i0e i1 i1e gammaln digamma entr".split()


def _edges(name: str) -> np.ndarray:
    info = vnp.finfo(name)
    tiny, most = float(info.tiny), float(info.max)
    sizes = [
        0.0,
        tiny,
        3 * tiny,
        1e-3,
        0.1,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        8.0,
        11.0,
        17.0,
        89.0,
        181.0,
        256.0,
        300.0,
        2049.0,
        60_000.0,
        most / 2,
        most,
    ]
    return np.array(sizes + [-size for size in sizes[1:]]).astype(name)


def _results(library: Any, name: str, dtype: str) -> dict[str, np.ndarray]:
    """Return values and slopes in `dtype`, at numbers of dtype `name`."""
    numbers = _edges(name)
    x, y = (library.numpy.asarray(part.ravel(), dtype) for part in np.meshgrid(numbers, numbers[::3]))
    calls = {(f"jnp.{f}"): getattr(library.numpy, f) for f in FUNCTIONS} | {f"nn.{f}": getattr(library.nn, f) for f in ACTIVATIONS}
    calls |= {f"special.{f}": getattr(library.scipy.special, f) for f in SPECIAL}
    pairs = "hypot arctan2 logaddexp logaddexp2 remainder divide multiply power copysign".split()

    def compute(x: Any, y: Any) -> dict[str, Any]:
        results = {}
        for path, function in calls.items():
            arguments = (x, y) if path[4:] in pairs else (x[: len(numbers)],)
            results[path], derivative = library.vjp(function, *arguments)
            for place, slope in enumerate(derivative(library.numpy.ones_like(results[path]))):
                results[f"{path} by {place}"] = slope
        return results

    return {path: np.asarray(result).astype(np.float64) for path, result in library.jit(compute)(x, y).items()}


@pytest.mark.wide
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_functions_at_the_edges_of_the_range_are_as_near_as_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    with np.errstate(all="ignore"):
        ours, theirs, wide = _results(vf, name, name), _results(jax, name, name), _results(vf, name, "float64")
        info = vnp.finfo(name)
        for path, exact in wide.items():
            representable = np.isfinite(exact.astype(name).astype(np.float64))
            finite = representable & np.isfinite(theirs[path])
            assert np.isfinite(ours[path][finite]).all(), path
            ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact[finite]), float(info.tiny)))) - info.nmant)
            error, other = (np.max(np.abs(result[path][finite] - exact[finite]) / ulp, initial=0.0) for result in (ours, theirs))
            assert error <= 2 * other + 1, (path, error, other)


def test_unwrap_of_large_steps_in_float16() -> None:
    x = vnp.asarray([0.0, 65504.0, 1.0, 32000.0, -32000.0, 3.0], "float16")
    expected = np.unwrap(np.asarray(x, np.float64), period=float(np.float16(2 * np.pi)))
    for compute in (vnp.unwrap, vf.jit(vnp.unwrap)):
        np.testing.assert_allclose(np.asarray(compute(x), np.float64), expected, atol=2 * 32)  # the last place of corrections of that size
    np.testing.assert_array_equal(vf.grad(lambda x: vnp.sum(vnp.unwrap(x)))(x), 1)
