"""Plans for NVIDIA GPUs that no machine needs to have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import Item, TargetCapabilities
from volta_fn.targets.nvidia.target import NvidiaTarget

_GPU = TargetCapabilities(
    float16=True,
    float64=True,
    int64=True,
    fma=True,
    subgroups=True,
    subgroup_least=32,
    subgroup_most=32,
    buffers=64,
    binding=1 << 34,
    workgroup_memory=48 << 10,
    invocations=1024,
    groups=(1 << 31) - 1,
)

#: Data centre GPUs of compute capability 8.0 and 9.0, and one without matrix units.
AMPERE = _GPU._replace(matrix_units="mma", processors=108, block_memory=163 << 10)
HOPPER = _GPU._replace(matrix_units="wgmma", processors=132, block_memory=227 << 10)
NONE = _GPU


def shaped(*shape: int, dtype: str = "bfloat16") -> vf.ShapeDtypeStruct:
    """Return the type of an array."""
    return vf.ShapeDtypeStruct(shape, dtype)


def only_item(f: Callable[..., Any], *types: Any, device: TargetCapabilities) -> Item:
    """Return the only item of a function's program."""
    (item,) = lower(vf.jit(f).lower(*types).jaxpr, NvidiaTarget(device)).items
    assert isinstance(item.node, KernelCall)
    return item


def operands_of(f: Callable[..., Any], arrays: list[np.ndarray], device: TargetCapabilities) -> tuple[Item, list[np.ndarray]]:
    """Return the only item of a function's program for arrays, and its operands."""
    types = [vf.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    program = lower(vf.jit(f).lower(*types).jaxpr, NvidiaTarget(device))
    (item,) = program.items
    values = dict(zip(program.closed.jaxpr.invars, arrays, strict=True))
    return item, [values[v] for v in item.operands]
