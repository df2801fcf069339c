"""The law of transposition: a linear call has an adjoint, without differentiation."""

from __future__ import annotations

import numpy as np

import volta_fn as vf
from tests.laws.common import C128, F64, arrays, draw, host, random_like, restricted, wide
from tests.samples.sample import Sample


def transpose_is_adjoint(sample: Sample) -> None:
    """Assert Re Σ c·(f(x) - f(0)) = Re Σ fᵀ(c)·x by each linear argument."""
    for dtype in (d for d in (F64, C128) if d.name in sample.dtypes):
        inputs = draw(sample, dtype)
        for position in sample.linear:
            outs, cotangents, transposed = _transpose_at(sample, inputs, position)
            forward = sum(float(np.sum(wide(c) * wide(o)).real) for c, o in zip(cotangents, outs, strict=True))
            backward = float(np.sum(transposed * wide(inputs[position])).real)
            scale = 1.0 + sum(float(np.sum(np.abs(wide(c) * wide(o)))) for c, o in zip(cotangents, outs, strict=True))
            label = f"transpose of {sample} in {dtype.name} by argument {position}"
            assert transposed.shape == inputs[position].shape, f"{label}: a result of shape {transposed.shape}"
            assert abs(forward - backward) <= 1e-12 * scale, f"{label}: {backward} where {forward} was expected"


def _transpose_at(sample: Sample, inputs: list[np.ndarray], position: int) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Return the results (less those at zero), random cotangents, and their transpose."""
    operands = arrays(inputs)
    function = restricted(sample.function, operands, (position,))
    outs = [
        x - zero
        for x, zero in zip(host(function(operands[position])), host(function(*arrays([np.zeros_like(inputs[position])]))), strict=True)
    ]
    rng = np.random.default_rng(11)
    cotangents = [random_like(rng, o) for o in outs]
    (transposed,) = host(vf.linear_transpose(function, operands[position])(arrays(cotangents)))
    return outs, cotangents, transposed
