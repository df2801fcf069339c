"""Attention on the matrix units of NVIDIA GPUs, forward and backward.

In the order in which to read: `tiles` (rows in shared memory, their products, the loop over tiles, what kernels by queries and by keys
share), `groups` (copies, stages and products by `wgmma`), `kernels` (attention and its gradients, each by `mma.sync` and by `wgmma`), and
`joint` (all gradients in one kernel). Here follows which problems are computed, and by which schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.attention import Attention, Rows, attention_of
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Form, Window
from volta_fn.targets.nvidia.attention.groups import GroupSchedule, has_tensor_maps
from volta_fn.targets.nvidia.attention.joint import JointSchedule, gradient_dispatches, gradient_workspace, is_worthwhile
from volta_fn.targets.nvidia.attention.kernels import PAIR, AnySchedule, forward_dispatch, workspace
from volta_fn.targets.nvidia.attention.tiles import AttentionSchedule
from volta_fn.targets.nvidia.matmul.problem import FORMATS
from volta_fn.targets.wgsl.attention import attention as shader_attention
from volta_fn.targets.wgsl.attention import attention_gradient as shader_gradient
from volta_fn.targets.wgsl.routine import Routine


class AttentionSchedules(NamedTuple):
    """Schedules of the kernels, the fastest first.

    The others are for GPUs that lack it, and for problems with few blocks.
    """

    forward: tuple[AnySchedule, ...]
    by_queries: tuple[AnySchedule, ...]
    by_keys: tuple[AnySchedule, ...]


_LITTLE = AttentionSchedule(fragments=1)

#: The schedules by the number of features.
SCHEDULES = {
    64: AttentionSchedules(
        (GroupSchedule(1, 128, 3, residents=2), AttentionSchedule(), _LITTLE),
        (GroupSchedule(1, 64, 3, retained=True, residents=2), AttentionSchedule(step=32), _LITTLE),
        (
            JointSchedule(),
            GroupSchedule(1, 64, 3, retained=True, residents=2),
            AttentionSchedule(warps=8, fragments=1, residents=1),
            _LITTLE,
        ),
    ),
    128: AttentionSchedules(
        (GroupSchedule(2, 128), AttentionSchedule(warps=8, fragments=1, residents=1), _LITTLE),
        (GroupSchedule(2, 64, 3, turns=True), AttentionSchedule(warps=8, fragments=1, step=32, residents=1)),
        (
            JointSchedule(stages=2, adders=2, retained=False, late=True),
            GroupSchedule(2, 64, 4, turns=True),
            AttentionSchedule(warps=8, fragments=1, step=32, retained=False, residents=1),
        ),
    ),
}

#: The fewest queries and keys with which tiles are not mostly empty.
_SHORTEST = 32

#: The least scale: kernels may round lesser ones to zero.
_LEAST_SCALE = float(np.finfo(np.float32).tiny)


def worthwhile(avals: tuple[ShapedArray, ...], form: Form, device: TargetCapabilities) -> bool:
    """Return whether matrix units serve these operands.

    Without a bias and masks every query sees a key, so that keys hidden from it have no weight and blocks may leave them out. (Where
    products of bfloat16 overflow to -inf, rows are as under a mask of -inf, not of the least logit.) Scales are positive and normal, so
    that the logit of such a key is still minus infinity as an exponent.
    """
    axes = [form.q, form.k, form.v, *([] if form.cotangent is None else [form.cotangent])]
    plain = form.operands == 3 and not form.softcap and form.window in (Window(), CAUSAL)
    if not device.matrix_units or not plain or form.scale < _LEAST_SCALE or any(a.features != len(a.order) - 1 for a in axes):
        return False
    a = attention_of(avals, form._replace(cotangent=None))
    return _is_computed(a, device) and min(a.queries, a.keys) >= _SHORTEST


def _is_computed(a: Attention, device: TargetCapabilities) -> bool:
    """Return whether the kernels compute a problem without a mask."""
    dtype, width = a.q.dtype, a.q.width
    if (
        dtype not in FORMATS
        or dtype.itemsize != 2
        or width not in SCHEDULES
        or any((x.dtype, x.width) != (dtype, width) for x in (a.q, a.k, a.v))
    ):
        return False
    schedules = SCHEDULES[width]
    operands = (schedules.forward, 1, 0), (schedules.by_queries, 2, 0), (schedules.by_keys, 2, PAIR)
    has_groups = device.matrix_units == "wgmma"
    fits = all(
        schedule.shared(width, count, extra) <= device.block_memory
        for options, count, extra in operands
        for schedule in options
        if has_groups or isinstance(schedule, AttentionSchedule)
    )
    return fits and workspace(a) < 1 << 31  # statistics are addressed by 32 bits


def _usable(schedules: Sequence[AnySchedule], device: TargetCapabilities, *arrays: Rows) -> list[AnySchedule]:
    """Return the schedules that a device has, and tensor maps of the arrays allow."""
    has_groups = device.matrix_units == "wgmma" and has_tensor_maps(*arrays)
    return [s for s in schedules if has_groups or isinstance(s, AttentionSchedule)]


def _first(usable: Sequence[AnySchedule], heads: int, rows: int, device: TargetCapabilities) -> AnySchedule:
    """Return the first schedule with a block for each multiprocessor, or the last."""
    return next((s for s in usable if heads * -(-rows // s.rows) >= device.processors), usable[-1])


def attention(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of attention: on matrix units, or else a shader."""
    if not worthwhile(avals, params["form"], device):
        return shader_attention(avals, params, device)
    a = attention_of(avals, params["form"])
    usable = _usable(SCHEDULES[a.q.width].forward, device, a.q, a.k, a.v)
    schedule = max(usable, key=lambda s: min(a.stack * -(-a.queries // s.rows), device.processors))  # the first with the most blocks
    return Routine((forward_dispatch(a, schedule),))


def attention_gradient(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine:
    """Return the routine of the gradients: on matrix units, or else shaders."""
    if not worthwhile(avals, params["form"], device):
        return shader_gradient(avals, params, device)
    a, schedules = attention_of(avals, params["form"]), SCHEDULES[avals[0].shape[params["form"].q.features]]
    assert a.cotangent is not None
    arrays = a.q, a.k, a.v, a.cotangent
    by_queries = _first(_usable(schedules.by_queries, device, *arrays), a.stack, a.queries, device)
    options = [s for s in _usable(schedules.by_keys, device, *arrays) if is_worthwhile(a) or not isinstance(s, JointSchedule)]
    by_keys = _first(options, a.groups, a.keys, device)
    return Routine(gradient_dispatches(a, a.cotangent, by_queries, by_keys), (gradient_workspace(a, by_keys),))


#: Makers of routines by the name of the instruction.
ROUTINES = {"attention_routine": attention, "attention_gradient_routine": attention_gradient}
