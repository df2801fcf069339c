"""What kernels give as machine code against what they give by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.laws.common import ROUNDING, assert_close
from tests.targets.cpu.running import run_routine
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.compiler.ir.kernel import Kernel, interpret
from volta_fn.targets.cpu.loops import routine


def run_kernel(
    kernel: Kernel, inputs: Sequence[np.ndarray], chunks: int = 1, places: Mapping[int, int] | None = None
) -> list[np.ndarray] | None:
    """Return the outputs of the kernel's machine code; None if it has none."""
    compiled = routine(kernel)
    if compiled is None:
        return None
    outputs = [(store.shape, kernel.nodes[store.value].dtype) for store in kernel.stores]
    return run_routine(compiled, inputs, outputs, chunks, places)


def agrees(kernel: Kernel, inputs: Sequence[np.ndarray], what: str, factor: float = 1.0) -> bool:
    """Check machine code, if any, against the interpreter; it gives the same however tasks are shared out and wherever results lie."""
    actual = run_kernel(kernel, inputs)
    if actual is None:
        return False
    again = run_kernel(kernel, inputs, chunks=3)
    assert again is not None
    for here, repeated, wanted in zip(actual, again, interpret(kernel, *inputs), strict=True):
        assert here.tobytes() == repeated.tobytes(), f"{what}: results depend on who does the tasks"
        assert_close(here, wanted, factor * ROUNDING.get(wanted.dtype.name, 0.0), what)
    for output in range(len(kernel.stores)):
        for operand in overwritable(kernel, output):
            placed = run_kernel(kernel, inputs, places={output: operand})
            assert placed is not None
            for here, repeated in zip(actual, placed, strict=True):
                assert here.tobytes() == repeated.tobytes(), (
                    f"{what}: result {output} in the memory of operand {operand} gives other results"
                )
    return True
