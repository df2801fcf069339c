"""Scans of recurrent layers, and of their gradients, as one kernel.

In the order in which to read: `problem` (which scans are recurrences), `kernel` (how they are divided among blocks, and computed).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from volta_fn.compiler.target import RoutineKey, TargetCapabilities
from volta_fn.core.jaxpr import Equation
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.nvidia.recurrence.kernel import COUNTER, RecurrentKernel, Tiling, choose, published_bytes
from volta_fn.targets.nvidia.recurrence.problem import Read, Recurrence, recurrence_of
from volta_fn.targets.wgsl.convolution import zeros
from volta_fn.targets.wgsl.routine import Routine


def loop_key(eqn: Equation, device: TargetCapabilities) -> RoutineKey | None:
    """Return the key of the routine of a recurrence; None for other loops."""
    recurrence = recurrence_of(eqn) if device.matrix_units and eqn.primitive is scan_p else None
    tiling = None if recurrence is None else choose(recurrence, device)
    if recurrence is None or tiling is None:
        return None
    operands = len(eqn.invars)
    return RoutineKey(("recurrence", recurrence, tiling, operands), lambda: routine(recurrence, tiling, operands, device))


def routine(r: Recurrence, t: Tiling, operands: int, device: TargetCapabilities) -> Routine:
    """Return the routine of a recurrence, of a scan with so many operands."""
    rows = sorted({node.number for node in r.nodes if isinstance(node, Read) and node.kind == "row"})
    kernel = RecurrentKernel(r, t, rows)
    first = r.constants + len(r.carry)
    results, workspace = len(r.carry) + len(r.stacked), operands + len(r.carry) + len(r.stacked)
    down, across = t.blocks(r)
    buffers = (*range(first), *[first + row for row in rows], *range(operands, workspace + 1 + len(r.products)))
    dispatch = kernel_dispatch(kernel.header, buffers, results + 1 + len(r.products), kernel.text(), down * across)
    counters = replace(zeros(np.dtype(np.uint32), COUNTER // 4 * down, device), buffers=(workspace,))
    sizes = (COUNTER * down, *[published_bytes(r, t, product) for product in r.products])
    return Routine((counters, dispatch), sizes)
