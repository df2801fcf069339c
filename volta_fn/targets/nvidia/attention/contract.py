"""The choice of matrix units for attention: problems and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import Form
from volta_fn.targets.nvidia.attention.forward import forward_dispatch
from volta_fn.targets.nvidia.attention.tiles import AttentionSchedule
from volta_fn.targets.nvidia.matmul.problem import FORMATS
from volta_fn.targets.wgsl.attention import attention as shader_attention
from volta_fn.targets.wgsl.attention.problem import Attention, Rows, attention_of
from volta_fn.targets.wgsl.routine import Routine

#: The schedule by the number of features.
_FORWARD = {64: AttentionSchedule(), 128: AttentionSchedule(warps=8, fragments=1, residents=1)}

#: The fewest queries and keys with which tiles are not mostly empty.
_SHORTEST = 32


def worthwhile(avals: tuple[ShapedArray, ...], form: Form, device: TargetCapabilities) -> bool:
    """Return whether matrix units serve these operands."""
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    if not device.matrix_units or form.masked or form.scale <= 0 or any(a.features != len(a.order) - 1 for a in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    return _is_computed(a, device) and min(a.queries, a.keys) >= _SHORTEST


def _is_computed(a: Attention, device: TargetCapabilities) -> bool:
    """Return whether the kernels compute a problem without a mask."""
    arrays: Sequence[Rows] = [a.q, a.k, a.v]
    dtype, width = a.q.dtype, a.q.width
    if dtype not in FORMATS or width not in _FORWARD or any((x.dtype, x.width) != (dtype, width) for x in arrays):
        return False
    # Statistics are addressed by 32 bits.
    return 8 * a.stack * a.queries < 1 << 31 and _FORWARD[width].shared(width, 1, 0) <= device.block_memory


def attention(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of attention: on matrix units, or else a shader."""
    if not worthwhile(avals, params["form"], device):
        return shader_attention(avals, params, device)
    a = attention_of(avals, params["form"])
    return Routine((forward_dispatch(a, _FORWARD[a.q.width]),))


#: Makers of routines by the name of the instruction.
ROUTINES = {"attention_routine": attention}
