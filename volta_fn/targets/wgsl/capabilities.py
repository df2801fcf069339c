"""What code generators must know of a GPU."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """A device's features and limits; the defaults are what every WebGPU device has."""

    #: Whether shaders have 16-bit floats (``enable f16``), 64-bit floats, and 64-bit integers.
    float16: bool = False
    float64: bool = False
    int64: bool = False
    #: Whether ``fma`` rounds once: WGSL lets it round twice.
    fma: bool = False
    #: Whether float32 arithmetic keeps subnormal numbers: WGSL lets it take them, and give them, as zeros.
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
    #: Turns that all loops of an invocation may take together: drivers in software end loops that take more.
    turns: int = 1 << 32
    #: The adapter's name, by which schedules are remembered.
    adapter: str = ""
