"""Paddings between elements and bitcasts, which kernels cannot express."""

from __future__ import annotations

from typing import Any

from volta_fn.codegen.geometry.strides import row_major
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.data_movement.joining import pad_p
from volta_fn.targets.wgsl.index_arith import dotted, quotient
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, copy, fill, result_array
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import Number, Shader, is_supported


def pad(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    operand, _ = avals
    result = pad_p.result_avals(avals, params)
    if not is_supported(operand.dtype, device):
        return None
    if not result.size:
        return Routine(())
    shader = Shader(device, INVOCATIONS)
    source = shader.buffer(0, operand.dtype) if operand.size else None
    between, target = shader.buffer(1, operand.dtype), result_array(shader, 2, operand.dtype, result.size)

    def element(index: str) -> Number:
        if source is None:
            return between.load("0u")
        positions, inside = [], []
        at_all = shader.coordinates(index, result.shape)
        for at, size, (low, _, interior) in zip(at_all, operand.shape, params["padding_config"], strict=True):
            # Less than zero is very much, which is outside, too.
            position, step = shader.let("u32", f"{at} + {-low % 2**32}u"), interior + 1
            inside.append(f"{position} <= {(size - 1) * step}u" + (f" && {position} % {step}u == 0u" if interior else ""))
            positions.append(quotient(position, step))
        there = shader.let("bool", " && ".join(inside) or "true")
        x = source.load(shader.let("u32", f"select(0u, {dotted(positions, row_major(operand.shape))}, {there})"))
        return Number(x.dtype, shader.let(x.type, f"select({between.load('0u').text}, {x.text}, {there})"))

    return Routine((fill(shader, target, result.size, element),))


def bitcast_convert_type(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of the primitive, which copies the bytes."""
    (operand,) = avals
    return Routine((copy(Shader(device, INVOCATIONS), 0, 1, operand.size * operand.dtype.itemsize),) if operand.size else ())
