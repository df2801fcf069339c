"""Routines of single primitives beside what the primitives mean in NumPy, on what every device has and on all that this one has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.targets.reference import assert_same, reference
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library import ROUTINES
from volta_fn.targets.wgsl.routine import Routine


def least_capabilities() -> TargetCapabilities:
    """Return what every device can do; 64-bit numbers are there if this device has them, as runtimes refuse them otherwise."""
    actual = capabilities()
    return TargetCapabilities(float64=actual.float64, int64=actual.int64)


def routine_of(name: str, inputs: Sequence[np.ndarray], params: dict[str, Any], target: TargetCapabilities) -> Routine:
    """Return the routine, which binds no more than the device can."""
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in inputs])
    routine = ROUTINES[name](avals, params, target)
    assert routine is not None, f"no routine of {name} for {avals}, {params}"
    assert all(len(d.buffers) <= target.buffers for d in routine.dispatches), "more buffers than the device binds"
    return routine


def results(
    name: str, inputs: Sequence[np.ndarray], params: dict[str, Any], target: TargetCapabilities, like: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the results of the routine."""
    return run_routine(routine_of(name, inputs, params, target), inputs, [(x.shape, x.dtype) for x in like])


def check(name: str, inputs: Sequence[np.ndarray], params: dict[str, Any], exact: bool = True) -> None:
    """Check that the routine agrees with the primitive's NumPy function."""
    expected = reference(name, inputs, params)
    outputs = [(x.shape, x.dtype) for x in expected]
    for routine in {routine_of(name, inputs, params, target) for target in (least_capabilities(), capabilities())}:
        for got, wanted in zip(run_routine(routine, inputs, outputs), expected, strict=True):
            assert_same(got, wanted, exact)
