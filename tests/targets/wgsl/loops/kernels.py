"""What kernels give as shaders against what they give by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.laws.common import ROUNDING, assert_close
from tests.targets.wgsl.running import capabilities, run_routine
from volta_fn.compiler.ir.kernel import Kernel, interpret
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops import routine

#: What every device can do, with 64-bit numbers, and what this one can.
DEVICES = [TargetCapabilities(float64=True, int64=True), capabilities()]


def run_kernel(kernel: Kernel, inputs: Sequence[np.ndarray], device: TargetCapabilities = DEVICES[0]) -> list[np.ndarray]:
    """Return the outputs of the kernel's shaders."""
    outputs = [(store.shape, kernel.nodes[store.value].dtype) for store in kernel.stores]
    return run_routine(routine(kernel, device), inputs, outputs)


def agrees(kernel: Kernel, inputs: Sequence[np.ndarray], what: str, factor: float = 1.0) -> None:
    """Check shaders for every device against the interpreter."""
    wanted = interpret(kernel, *inputs)
    for device in DEVICES:
        for actual, expected in zip(run_kernel(kernel, inputs, device), wanted, strict=True):
            assert_close(actual, expected, factor * ROUNDING.get(expected.dtype.name, 0.0), what)
