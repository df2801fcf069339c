"""What the compiler knows of a target: what its hardware offers."""

from __future__ import annotations

from typing import NamedTuple


class TargetCapabilities(NamedTuple):
    """What a target's hardware offers: limits, dtypes and features. The defaults are what every WebGPU device has."""

    #: 16-bit floats (WGSL's ``enable f16``), 64-bit floats, and 64-bit integers.
    float16: bool = False
    float64: bool = False
    int64: bool = False
    #: Whether ``fma`` rounds once: WGSL lets it round twice.
    fma: bool = False
    #: Whether float32 arithmetic keeps subnormal numbers: WGSL lets it flush them to zero.
    subnormals: bool = True
    #: Whether subgroup operations may be used, and the least and greatest number of invocations in a subgroup.
    subgroups: bool = False
    subgroup_least: int = 4
    subgroup_most: int = 128
    #: Storage buffers that a shader may bind.
    buffers: int = 8
    #: Bytes of one binding.
    binding: int = 1 << 27
    #: Bytes of workgroup memory.
    workgroup_memory: int = 1 << 14
    #: Invocations in a workgroup.
    invocations: int = 256
    #: Workgroups along a dimension.
    groups: int = 65535
    #: Offsets of bindings are multiples of this many bytes.
    alignment: int = 256
    #: Iterations that all loops of an invocation may take together: software drivers end loops that take more.
    iterations: int = 1 << 32
    #: The adapter's name, by which tuned schedules are found.
    adapter: str = ""
