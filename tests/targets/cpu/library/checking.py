"""Routines of single primitives beside what the primitives mean in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.targets.cpu.running import run_routine
from tests.targets.reference import assert_same, reference
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.cpu.library import ROUTINES


def check(name: str, inputs: Sequence[np.ndarray], params: dict[str, Any], exact: bool = True) -> None:
    """Check that the routine agrees with the primitive's NumPy function in one piece and in three, which agree to the bit."""
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in inputs])
    routine = ROUTINES[name](avals, params)
    assert routine is not None, f"no routine of {name} for {avals}, {params}"
    expected = reference(name, inputs, params)
    outputs = [(x.shape, x.dtype) for x in expected]
    whole = run_routine(routine, inputs, outputs)
    cut = run_routine(routine, inputs, outputs, chunks=3)
    for got, again, wanted in zip(whole, cut, expected, strict=True):
        assert got.tobytes() == again.tobytes(), "the result depends on how tasks are shared out"
        assert_same(got, wanted, exact)
