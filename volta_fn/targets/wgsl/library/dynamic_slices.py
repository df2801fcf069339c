"""Blocks read or replaced at positions that are known when the program runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.codegen.geometry.strides import row_major
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.index_arith import dotted, plus, times
from volta_fn.targets.wgsl.library.copy_units import (
    INVOCATIONS,
    Unit,
    copy,
    fill_units,
    for_each,
    in_units,
    load_unit,
    store_unit,
    unit_array,
)
from volta_fn.targets.wgsl.library.gather_offsets import Integers
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars import Shader

_UINT32 = np.dtype(np.uint32)


def dynamic_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    operand, *starts = avals
    sizes: tuple[int, ...] = params["slice_sizes"]
    count = math.prod(sizes)
    if not count:
        return Routine(())
    corner = _Corner(operand, starts, sizes, 1, len(avals) + 1, device)
    itemsize = operand.dtype.itemsize
    unit, (loops, _, theirs) = in_units(itemsize, (sizes, row_major(sizes), row_major(operand.shape)), corner.strides)
    shader = Shader(device, INVOCATIONS)
    source = unit_array(shader, 0, unit, operand.size * itemsize)
    target = unit_array(shader, len(avals), unit, count * itemsize, written=True)
    first = corner.offset(shader, itemsize, unit)

    def element(index: str) -> Unit:
        at = plus(first, dotted(shader.coordinates(index, loops), theirs))
        return load_unit(source, unit, shader.let("u32", at))

    done = fill_units(shader, target, unit, count * itemsize // unit, element)
    return Routine((*corner.dispatches, done), corner.workspaces)


def dynamic_update_slice(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive.

    Its first dispatch copies the operand, which the others do not read.
    """
    operand, update, *starts = avals
    if not operand.size:
        return Routine(())
    size, itemsize = operand.size * operand.dtype.itemsize, operand.dtype.itemsize
    copied = copy(Shader(device, INVOCATIONS), 0, len(avals), size)
    if not update.size:
        return Routine((copied,))
    corner = _Corner(operand, starts, update.shape, 2, len(avals) + 1, device)
    loops = (update.shape, row_major(update.shape), row_major(operand.shape))
    unit, (sizes, _, theirs) = in_units(itemsize, loops, corner.strides)
    shader = Shader(device, INVOCATIONS)
    source = unit_array(shader, 1, unit, update.size * itemsize)
    target = shader.buffer(len(avals), source.dtype, written=True, size=size // 4 if unit == 16 else 0)
    first = corner.offset(shader, itemsize, unit)

    def move(index: str) -> None:
        at = plus(first, dotted(shader.coordinates(index, sizes), theirs))
        store_unit(target, unit, shader.let("u32", at), load_unit(source, unit, index))

    done = for_each(shader, update.size * itemsize // unit, move)
    return Routine((copied, *corner.dispatches, done), corner.workspaces)


class _Corner:
    """Where a block begins.

    If a shader cannot bind all starts, other shaders add up some of them first.
    """

    def __init__(
        self,
        operand: ShapedArray,
        starts: Sequence[ShapedArray],
        sizes: Sequence[int],
        first: int,
        workspace: int,
        device: TargetCapabilities,
    ) -> None:
        strides = row_major(operand.shape)
        limits = [n - size for n, size in zip(operand.shape, sizes, strict=True)]
        #: Of the starts that matter: the number of the buffer, the dtype, the greatest start, the stride.
        self._starts = [
            (first + d, start.dtype, limit, stride)
            for d, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True))
            if limit
        ]
        self._workspace = workspace
        self._device = device
        self._partial_sums = 0
        self.dispatches: tuple[Dispatch, ...] = ()
        if len(self._starts) + first + 1 > device.buffers:
            each = device.buffers - 1
            groups = [self._starts[k : k + each] for k in range(0, len(self._starts), each)]
            self._partial_sums = len(groups)
            self.dispatches = tuple([self._partial_sum(group, k) for k, group in enumerate(groups)])

    @property
    def strides(self) -> list[int]:
        return [stride for *_, stride in self._starts]

    @property
    def workspaces(self) -> tuple[int, ...]:
        return (4 * self._partial_sums,) if self._partial_sums else ()

    def _partial_sum(self, starts: Sequence[tuple[int, np.dtype, int, int]], number: int) -> Dispatch:
        shader = Shader(self._device, 1)
        found = shader.buffer(self._workspace, _UINT32, written=True)
        shader.emit(f"{found.name}[{number}] = {self._sum(shader, starts)};")
        return shader.dispatch(1)

    @staticmethod
    def _sum(shader: Shader, starts: Sequence[tuple[int, np.dtype, int, int]]) -> str:
        terms = [times(Integers(shader, number, dtype).within("0u", limit)[0], stride) for number, dtype, limit, stride in starts]
        return plus(*terms)

    def offset(self, shader: Shader, itemsize: int, unit: int) -> str:
        """Emit the number of the block's first unit."""
        if self._partial_sums:
            found = shader.buffer(self._workspace, _UINT32)
            total = plus(*[f"{found.name}[{k}]" for k in range(self._partial_sums)])
        else:
            total = self._sum(shader, self._starts)
        scaled = times(total, itemsize // unit) if itemsize >= unit else f"({total} / {unit // itemsize}u)"
        return shader.let("u32", scaled)
