"""Routines: pieces of GPU code that programs run.

A routine is a list of *dispatches*, each a compute shader over a number of workgroups; a dispatch begins when those before it are done.
Every array is a storage buffer that holds the bytes of NumPy's contiguous array, rounded up to a multiple of four: 32-bit numbers are
what they are, complex64 is ``vec2<f32>``, and dtypes of one or two bytes (bool, int8, float16, bfloat16, …) lie packed in ``u32``
words, low bits first. Bytes after the last element may hold anything, and be left with anything.

Sizes are part of a shader's text: there are no uniforms. Equal texts are one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from volta_fn.targets.wgsl.shader_module import ShaderModule


@dataclass(frozen=True)
class Dispatch:
    """One run of a compute shader."""

    #: Its i-th binding is the i-th of `buffers`.
    shader: ShaderModule
    #: Numbers of buffers, no one twice: the operands, the results, and the workspaces, in this order.
    buffers: tuple[int, ...]
    #: Which of them the shader declares as ``read_write``; the others are ``read``.
    written: frozenset[int]
    #: Workgroups along x, y and z.
    groups: tuple[int, int, int]
    #: Multiplications, or other steps of innermost loops, if they may be very many.
    work: int = 0
    #: Writes a module that does the same, bit by bit, in less time, but takes longer to compile; None: there is none.
    better: Callable[[], ShaderModule] | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """The WGSL of its shader."""
        return self.shader.text

    @property
    def best(self) -> str:
        """The WGSL of the shader that takes the least time, however long it takes to compile."""
        return self.source if self.better is None else self.better().text

    @property
    def places_written(self) -> frozenset[int]:
        """The places, among its bindings, of the buffers that it writes."""
        return frozenset([place for place, number in enumerate(self.buffers) if number in self.written])


@dataclass(frozen=True)
class Routine:
    """What to run for a kernel or an equation."""

    dispatches: tuple[Dispatch, ...]
    #: Bytes of each buffer that it needs besides operands and results. They hold anything at first.
    workspaces: tuple[int, ...] = ()


def grid(count: int, most: int = 65535) -> tuple[int, int, int]:
    """A grid of at least `count` workgroups, which shaders number ``id.x + id.y * x``; numbers from `count` on have nothing to do."""
    if count <= most:
        return count, 1, 1
    rows = -(-count // most)
    return -(-count // rows), rows, 1
