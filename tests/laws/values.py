"""The law of values: a sample gives NumPy's values in exactly the promised dtype."""

from __future__ import annotations

import numpy as np

from tests.laws.common import ROUNDING, arrays, assert_close, assert_same_bits, draw, host, on_gpu, wide
from tests.samples.sample import Sample
from volta_fn import dtypes, tree
from volta_fn.core.primitive import PRIMITIVES


def values_agree(sample: Sample, seed: int = 0) -> None:
    """Compare the sample with its reference, in every dtype, and run its own check."""
    for name in sample.dtypes:
        dtype = dtypes.as_dtype(name)
        inputs = draw(sample, dtype, seed)
        result = sample.function(*arrays(inputs))
        leaves = tree.leaves(result)
        expected_dtypes = _expected_dtypes(sample, dtype, len(leaves))
        for leaf, expected in zip(leaves, expected_dtypes, strict=True):
            assert leaf.dtype == expected, f"{sample} in {name}: result of dtype {leaf.dtype} where {expected} was promised"
            assert not leaf.weak_type, f"{sample} in {name}: a weak result from strong arguments"
        outputs = host(result)
        for leaf, output in zip(leaves, outputs, strict=True):
            held = (output.shape, output.dtype)
            assert held == (leaf.shape, leaf.dtype), f"{sample} in {name}: {leaf.aval} holds {output.dtype}{list(output.shape)}"
        if sample.reference is not None:
            _compare(sample, dtype, inputs, outputs)
        if sample.check is not None:
            sample.check(inputs, outputs)


def _expected_dtypes(sample: Sample, dtype: np.dtype, count: int) -> list[np.dtype]:
    promised = dtype if sample.result_dtype is None else sample.result_dtype(dtype)
    several = promised if isinstance(promised, tuple) else (promised,) * count
    return [dtypes.as_dtype(d) for d in several]


def _compare(sample: Sample, dtype: np.dtype, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    arguments = inputs if sample.exact else [wide(v) for v in inputs]
    with np.errstate(all="ignore"):
        result = sample.reference(*arguments)  # type: ignore[misc]  # only called with a reference
        several = result if isinstance(result, (tuple, list)) else (result,)
        expected = [np.asarray(e).astype(o.dtype) for e, o in zip(several, outputs, strict=True)]
    elementwise = all(PRIMITIVES[p].arity for p in sample.primitives)
    for i, (actual, wanted) in enumerate(zip(outputs, expected, strict=True)):
        label = f"{sample} in {dtype.name}, result {i}, of {[v.tolist() for v in inputs]}"
        if sample.exact and not (on_gpu() and dtype in dtypes.COMPLEX):  # whose sizes have no rounding in common
            assert_same_bits(actual, wanted, label)
            continue
        rtol = sample.tolerance.get(dtype.name, ROUNDING.get(dtype.name, 0.0))
        if actual.dtype in dtypes.INEXACT and dtype not in dtypes.INEXACT:
            rtol = ROUNDING[actual.dtype.name]
        assert_close(actual, wanted, rtol, label, atol=rtol * 1e-3 if elementwise else None)
