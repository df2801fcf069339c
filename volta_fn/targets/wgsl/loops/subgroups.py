"""Reductions over subgroups of any width, by exchanges with nearer neighbours.

WGSL's own reductions are not used: a driver (NVIDIA's 580, on an H200) had `subgroupAdd` of integers add up only those invocations that had
gone the same way at the last branch, though all of them had converged again after it, and had waited for each other. Its exchanges and its
scans include all invocations.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import reduction_of
from volta_fn.targets.wgsl.loops.accumulate import Accumulator
from volta_fn.targets.wgsl.loops.widening import INT32
from volta_fn.targets.wgsl.scalars import Number, Shader, combine
from volta_fn.targets.wgsl.text import Function

#: Integers that are ordered as floats are, NaN beyond all others; and back.
_KEY = """fn {name}(x: f32) -> i32 {{
  let bits = bitcast<i32>(x);
  return select(bits ^ ((bits >> 31u) & 0x7fffffff), {nan}, (bits & 0x7fffffff) > 0x7f800000);
}}"""
_UNKEY = """fn float_of_key(key: i32) -> f32 {
  return bitcast<f32>(key ^ ((key >> 31u) & 0x7fffffff));
}"""
_NAN_KEYS = {"max": "0x7fffffff", "min": "bitcast<i32>(0x80000000u)"}


def is_possible(accumulator: Accumulator) -> bool:
    """Return True if invocations can exchange what a reduction carries."""
    return not accumulator.node.is_index and accumulator.dtype in (np.float32, np.int32, np.uint32)


def has_rows(device: TargetCapabilities, per_row: int, invocations: int) -> bool:
    """Return True if so many neighbours in a workgroup are always in one subgroup."""
    width = device.subgroup_most
    return device.subgroups and device.subgroup_least == width and 1 < per_row <= width and invocations % width == 0


def over_subgroup(shader: Shader, accumulator: Accumulator, x: Number, per_row: int | None = None) -> Number:
    """Emit a number combined over the subgroup, or over so many neighbours in it.

    All of them get the same bits.
    """
    op, step = accumulator.node.op, accumulator.node.reduction.step
    if x.dtype != np.float32 or step not in _NAN_KEYS:
        return _exchanged(shader, op, x, per_row)
    # Extrema of floats take several operations, because of NaN; those of integers, one.
    key = shader.helper(f"key_{op}", _KEY.format(name=f"key_{op}", nan=_NAN_KEYS[step]))
    best = _exchanged(shader, op, Number(INT32, f"{key}({x.text})"), per_row)
    return Number(x.dtype, shader.let("f32", f"{shader.helper('float_of_key', _UNKEY)}({best.text})"))


def _exchanged(shader: Shader, op: str, x: Number, per_row: int | None) -> Number:
    device = shader.module.device
    if per_row is None and device.subgroup_least == device.subgroup_most:
        per_row = device.subgroup_most

    def write(f: Function) -> tuple[str, str]:
        total = Number(x.dtype, f.var(x.type, "a0"))

        def exchange(reach: str) -> None:
            other = Number(x.dtype, f.let(x.type, f"subgroupShuffleXor({total.text}, {reach})"))
            f.emit(f"{total.text} = {combine(f, reduction_of(op), total, other).text};")

        if per_row is not None:
            for power in reversed(range(per_row.bit_length() - 1)):
                exchange(f"{1 << power}u")
        else:
            with f.block("for (var reach = a1 / 2u; reach > 0u; reach /= 2u)"):
                exchange("reach")
        return x.type, total.text

    known = per_row is not None
    name = shader.function(f"subgroup_{op}_{x.dtype.name}_{per_row or 'all'}", (x.type,) if known else (x.type, "u32"), write)
    size = "" if known else f", {shader.builtin('subgroup_size')}"
    return Number(x.dtype, shader.let(x.type, f"{name}({x.text}{size})"))
