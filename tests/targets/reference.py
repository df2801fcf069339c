"""The reference for tests of the targets' libraries: what the NumPy functions of primitives give, also for the calls in samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.laws.common import arrays, draw
from tests.samples import all_samples
from tests.samples.sample import Sample
from volta_fn import dtypes, jit
from volta_fn.core.jaxpr import Literal
from volta_fn.core.primitive import PRIMITIVES, evaluation_of

#: Relative to the largest number of a result, where a routine sums in another order than NumPy; complex products are NumPy's own affair,
#: which contracts them where it has vectors.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-14, "complex64": 2e-6, "complex128": 1e-14}


def reference(name: str, inputs: Sequence[np.ndarray], params: dict[str, Any]) -> list[np.ndarray]:
    """Return the results of the primitive's NumPy function."""
    evaluate = evaluation_of(PRIMITIVES[name])
    assert evaluate is not None
    with np.errstate(all="ignore"):
        result = evaluate(*inputs, **params)
    return [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]


def assert_same(got: np.ndarray, wanted: np.ndarray, exact: bool = True) -> None:
    """Assert equal numbers, NaN being equal to NaN; only close ones unless `exact`."""
    kind = got.dtype.name
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if kind in ("float16", "bfloat16"):
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    if (exact and got.dtype.kind != "c") or kind not in TOLERANCE:
        np.testing.assert_array_equal(got, wanted)
    else:
        finite = np.abs(wanted[np.isfinite(wanted)])
        tolerance = TOLERANCE[kind]
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * finite.max(initial=0))


def sample_calls(names: Sequence[str]) -> Iterator[tuple[str, Callable[[], list[tuple[str, list[np.ndarray], dict[str, Any]]]]]]:
    """Yield the samples of primitives in each of their dtypes: an id, and a function that gives the calls of these primitives in it."""
    for sample in all_samples():
        if set(sample.primitives) & set(names):
            for dtype in sample.dtypes:
                yield f"{sample}-{dtype}", lambda sample=sample, dtype=dtype: calls(sample, dtypes.as_dtype(dtype), names)


def calls(sample: Sample, dtype: np.dtype, names: Sequence[str]) -> list[tuple[str, list[np.ndarray], dict[str, Any]]]:
    """Return the calls of primitives in a sample: their names, operands and parameters."""
    args = arrays(draw(sample, dtype))
    closed = jit(sample.function).lower(*args).jaxpr
    values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, map(np.asarray, args), strict=True))
    values |= dict(zip(closed.jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    results = []
    for eqn in closed.eqns:
        inputs = [np.asarray(a.val) if isinstance(a, Literal) else values[a] for a in eqn.invars]
        if eqn.primitive.name in names:
            results.append((eqn.primitive.name, inputs, eqn.params))
        values |= dict(zip(eqn.outvars, reference(eqn.primitive.name, inputs, eqn.params), strict=True))
    return results
