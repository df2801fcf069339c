"""The peak that `explain` tells is what a device's pool gives out; `python -m tests.inspection.check_steps` compares whole steps."""

from __future__ import annotations

import volta_fn as vf
from tests.inspection.check_steps import PEAK_BOUND, allocated, step_of


def test_the_peak_on_a_gpu_is_what_a_call_leases() -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        step, args = step_of("train/lenet", quick=True)
        result = vf.explain(step, run=False)(*args)
        assert all(kernel.user_lines for kernel in result.steps)
        assert abs(result.memory.peak / allocated("train/lenet", quick=True) - 1) <= PEAK_BOUND
