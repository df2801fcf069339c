"""Whole steps of training on the GPU: what the CPU gives, and between the first dispatch and the last nothing that the host does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import volta_fn as vf
from benchmarks.workloads import named
from benchmarks.workloads.case import arrays_in, contestant
from tests.targets.wgsl.test_samples import WITHOUT

GPU = vf.devices("gpu")[0]

STEPS = ["train/mlp", "train/lenet", "train/lstm", "train/gpt"]


def run(name: str, steps: int) -> list[np.ndarray]:
    """Return the results of some calls."""
    call = contestant("volta_fn", named(name).case(quick=True)).call
    return [array for _ in range(steps) for array in arrays_in(call())]


@pytest.mark.parametrize("name", STEPS)
def test_steps_stay_on_the_device(name: str) -> None:
    expected = run(name, 4)
    with vf.default_device(GPU):
        call = contestant("volta_fn", named(name).case(quick=True)).call
        results = [call()]  # traces and compiles
        vf.block_until_ready(results)
        before = GPU.backend.counters
        results += [call() for _ in range(3)]
        after = GPU.backend.counters
        needed = Counter(after.host_steps) - Counter(before.host_steps)
        assert {*needed} <= WITHOUT
        assert after.reads == before.reads or needed
        assert after.dispatches > before.dispatches
    for actual, wanted in zip(arrays_in(results), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
