"""Gather: every unit of the result finds the window that it belongs to."""

from __future__ import annotations

from typing import Any

from volta_fn.codegen.geometry.strides import Dims, row_major
from volta_fn.codegen.geometry.window_offsets import Layout, gather_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.data_movement.indexing import default_fill
from volta_fn.targets.wgsl.index_arith import dotted, plus, quotient
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, Unit, chosen, fill_units, in_units, load_unit, unit_array, units_of
from volta_fn.targets.wgsl.library.gather_offsets import Integers, start_of
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Shader


def gather(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities, wraps: bool = False) -> Routine | None:
    """Return the routine of the primitive.

    If it `wraps`, negative positions count from the end.
    """
    operand, indices = avals
    result = gather_p.result_avals(avals, params)
    if not result.size:
        return Routine(())
    starts, _, layout = gather_of(avals, params)
    dtype, itemsize = operand.dtype, operand.dtype.itemsize
    strides = [stride for _, stride, _ in starts.addressed + starts.batching]
    unit, (sizes, _, theirs, steps) = in_units(itemsize, window_loops(layout), strides)
    shader = Shader(device, INVOCATIONS)
    source = unit_array(shader, 0, unit, operand.size * itemsize)
    added = operand.shape[params["dimension_numbers"].start_index_map[0]] if wraps else 0
    vectors = Integers(shader, 1, indices.dtype, added)
    target = unit_array(shader, 2, unit, result.size * itemsize, written=True)
    value = default_fill(dtype) if params["fill_value"] is None else params["fill_value"]

    def element(index: str) -> Unit:
        position = shader.coordinates(index, sizes)
        start = start_of(shader, starts, vectors, shader.named("u32", dotted(position, steps)))
        within = dotted(position, theirs)
        if itemsize >= unit:
            at = plus(f"{start.offset} * {itemsize // unit}u", within)
        else:
            at = plus(quotient(start.offset, unit // itemsize), within)
        read = load_unit(source, unit, shader.let("u32", at))
        return read if start.valid is None else chosen(shader, start.valid, read, units_of(value, dtype, unit, index))

    return Routine((fill_units(shader, target, unit, result.size * itemsize // unit, element),))


def window_loops(layout: Layout) -> tuple[Dims, ...]:
    """Return loops over an array of windows, in the order of its memory.

    They are sizes, strides in the array, strides in the operand, and steps of the window's number.
    """
    sizes, strides = layout.batch
    batch = [(n, s, 0, step) for n, s, step in zip(sizes, strides, row_major(sizes), strict=True)]
    inside = [(n, here, there, 0) for dims in (layout.lead, layout.rest) for n, here, there in zip(*dims, strict=True)]
    loops = sorted([*batch, *inside], key=lambda loop: -loop[1])
    columns = tuple(zip(*loops, strict=True))
    return columns or ((), (), (), ())
