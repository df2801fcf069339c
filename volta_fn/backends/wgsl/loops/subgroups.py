"""Reductions by the operations of subgroups, of whatever width they are."""

from __future__ import annotations

import numpy as np

from volta_fn.backends.wgsl.loops.accumulate import Accumulator
from volta_fn.backends.wgsl.scalars import Number, Shader

_OPERATIONS = {
    "reduce_sum": "subgroupAdd",
    "reduce_max": "subgroupMax",
    "reduce_min": "subgroupMin",
    "reduce_and": "subgroupAnd",
    "reduce_or": "subgroupOr",
    "reduce_xor": "subgroupXor",
}

#: Integers that are ordered as floats are, NaN beyond all others; and back.
_KEY = """fn {name}(x: f32) -> i32 {{
  let bits = bitcast<i32>(x);
  return select(bits ^ ((bits >> 31u) & 0x7fffffff), {nan}, (bits & 0x7fffffff) > 0x7f800000);
}}"""
_UNKEY = """fn float_of_key(key: i32) -> f32 {
  return bitcast<f32>(key ^ ((key >> 31u) & 0x7fffffff));
}"""


def is_possible(accumulator: Accumulator) -> bool:
    """Whether subgroups have an operation for a reduction."""
    return accumulator.node.op in _OPERATIONS and accumulator.dtype in (np.float32, np.int32, np.uint32)


def over_subgroup(shader: Shader, accumulator: Accumulator, x: Number) -> Number:
    """A number combined over the subgroup, known to all of it. What drivers make of NaN in maxima is not relied on."""
    op = accumulator.node.op
    call = _OPERATIONS[op]
    if x.dtype != np.float32 or op == "reduce_sum":
        return Number(x.dtype, shader.let(x.type, f"{call}({x.text})"))
    nan = "0x7fffffff" if op == "reduce_max" else "bitcast<i32>(0x80000000u)"
    key = shader.helper(f"key_{op}", _KEY.format(name=f"key_{op}", nan=nan))
    best = shader.let("i32", f"{call}({key}({x.text}))")
    return Number(x.dtype, shader.let("f32", f"{shader.helper('float_of_key', _UNKEY)}({best})"))
