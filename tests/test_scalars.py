"""Python numbers in every public function, in 64 bits, against NumPy's numbers."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from tests.scalar_arguments import KINDS, SPACES, Kind, ScalarArgument, accepted, functions, scalar_arguments

#: The most units in the last place by which values may differ.
ULPS = 4


def difference(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """Return by how many units in the last place results differ.

    The unit is that of the largest element. It is infinity for other shapes or dtypes.
    """
    if [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in want]:
        return np.inf
    return max([0.0, *map(_difference, got, want)])


def _difference(got: np.ndarray, want: np.ndarray) -> float:
    if got.dtype.kind not in "fc":
        return 0.0 if np.array_equal(got, want) else np.inf
    with np.errstate(all="ignore"):
        unit = np.spacing(np.max(abs(want), initial=0, where=np.isfinite(want)))
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        return float(np.max(np.where(same, 0, abs(got - want) / unit), initial=0))


def jitted(argument: ScalarArgument, arguments: object) -> list[np.ndarray] | None:
    """Return the result of a jitted function of the numbers; None if it must know them."""
    with contextlib.suppress(vf.errors.VoltaError, TypeError, ValueError):
        return [np.asarray(x) for x in vf.tree.leaves(vf.jit(argument.result)(arguments))]
    return None


#: Results that depend on how the function computes them, with NumPy's numbers as well: those are not compared with NumPy's functions.
OTHER_ALGORITHMS = {
    "numpy.histogram": "densities divide by differences of edges",
    "numpy.histogram2d": "densities divide by differences of edges",
    "numpy.histogramdd": "densities divide by differences of edges",
    "numpy.logspace": "powers of sums, whose rounding they amplify",
    "numpy.geomspace": "powers of sums, whose rounding they amplify",
    "numpy.polyfit": "an exact fit, whose covariance is the rounding errors",
    "numpy.polydiv": "a remainder that is zero but for rounding errors",
    "numpy.empty_like": "zeros where NumPy's are not initialised",
    "numpy.sinc": "NumPy rounds pi x, so its zeros are not zero",
    "numpy.linalg.svd": "singular vectors have no unique phase",
    "numpy.linalg.pinv": "NumPy ignores that the matrix is not Hermitian",
    "scipy.special.betainc": "a continued fraction, rounded at every step",
    "scipy.special.comb": "SciPy reads repetition as a truth value",
    "scipy.special.poch": "SciPy's by recurrences",
    "scipy.special.hyp1f1": "a power series, rounded at every term",
    "scipy.special.hyp2f1": "a power series, rounded at every term",
    "scipy.special.fresnel": "SciPy's is 1/2 where |x| > 36974, though 1 / (pi x) counts",
    "scipy.special.sph_harm_y": "beyond [0, pi], SciPy's has |sin theta|",
}

#: Arguments whose result takes the dtype of the number, a weak one, whatever that of the other arrays is.
_WEAK_RESULTS = {("numpy", f"histogram{kind}", "weights") for kind in ("", "2d", "dd")}

#: Functions whose time grows with the numbers; the other dtypes have small ones.
_LARGE_NUMBERS = {("int64", "scipy.special", "hyp2f1")}

REFERENCES = {"numpy": np, "numpy.linalg": np.linalg, "numpy.fft": np.fft, "scipy.special": scipy.special}


def problems(kind: Kind, space: str, name: str, argument: ScalarArgument) -> list[str]:
    """Return how the results with Python's numbers differ from those with NumPy's."""
    want, got = argument.call(kind.strong(argument.number)), argument.call(argument.number)
    result = {"eager": difference(got, want)}
    compiled = jitted(argument, argument.number)
    if compiled is not None and difference(compiled, want) > ULPS:  # programs may round otherwise, with either
        result["jit"] = difference(compiled, jitted(argument, kind.strong(argument.number)) or [])
    reference = getattr(REFERENCES.get(space), name, None)
    with contextlib.suppress(Exception):  # NumPy may not take these arguments, or give a result of another type
        theirs = argument.call(argument.number, reference) if reference and f"{space}.{name}" not in OTHER_ALGORITHMS else got
        result["NumPy"] = difference(got, theirs) if difference(got, theirs) < np.inf else 0.0
    where = f"{space}.{name}({argument.parameter}={argument.number})"
    return [f"{where} {how}: {ulps} ulp" for how, ulps in result.items() if ulps > ULPS]


@pytest.mark.parametrize("space", [*SPACES, "at"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.dtype)
def test_python_numbers_keep_their_digits(kind, space):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = [
            (name, argument)
            for name, function in functions(space).items()
            if (kind.dtype, space, name) not in _LARGE_NUMBERS
            for argument in scalar_arguments(function, kind)
            if (space, name, argument.parameter) not in _WEAK_RESULTS
        ]
        assert not [problem for name, argument in results for problem in problems(kind, space, name, argument)]


#: Functions that are known to have lost digits.
KNOWN = {
    "numpy": "linspace geomspace logspace pad insert quantile percentile nanquantile nanpercentile diff "
    "ediff1d gradient polyint full full_like where clip",
    "lax": "full full_like pad reduce reduce_window",
    "at": "set add multiply divide power min max apply get",
}  # fmt: skip


@pytest.mark.parametrize("space", KNOWN)
def test_the_sweep_finds_arguments_that_show_lost_digits(space):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in KNOWN[space].split():
            kind, result = KINDS[0], list(scalar_arguments(functions(space)[name], KINDS[0]))
            assert any(difference(p.call(kind.rounded(p.number)), p.call(kind.strong(p.number))) > 1e3 for p in result), name


#: Strong arrays of a few dtypes.
ARRAYS = [np.array([0.1, 0.3, 0.4, 0.6, 0.9], np.float32), np.array([3, 1, 7, 2, 12]), np.array([True, False, True, True, False])]


@pytest.mark.parametrize("space", [s for s in SPACES if s != "nn"])  # of integers, activations with constants are weak floats, as in JAX
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: array.dtype.name)
def test_results_of_strong_arrays_are_strong(array, space):
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        calls = [(name, f, accepted(f, array, {})) for name, f in functions(space).items()]
        of_arrays = [(n, f, c) for n, f, c in calls if c is not None and all(isinstance(v, np.ndarray) for v in c.values())]
        results = [(name, ScalarArgument(f, "", arguments, None).result(None)) for name, f, arguments in of_arrays]
    weak = {name for name, result in results if any(getattr(x, "weak_type", False) for x in vf.tree.leaves(result))}
    assert weak <= {"zeta"}  # whose default is a Python float, with which integers are a weak float, as in JAX
