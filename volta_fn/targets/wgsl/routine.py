"""Routines: the GPU code of kernels and equations.

A routine is a list of *dispatches*, each a compute shader over a number of workgroups; a dispatch begins when those before it are done.
Every array is a storage buffer that holds the bytes of NumPy's contiguous array, rounded up to a multiple of four: 32-bit numbers are
stored as themselves, complex64 as ``vec2<f32>``, and dtypes of one or two bytes (bool, int8, float16, bfloat16, …) are packed in ``u32``
words, low bits first. Bytes after the last element are undefined.

Sizes are literals in a shader: there are no uniforms. Equal texts are one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from volta_fn.targets.wgsl.shader import ShaderModule


@dataclass(frozen=True)
class Dispatch:
    """One run of a compute shader."""

    #: Its i-th binding is the i-th of `buffers`.
    shader: ShaderModule
    #: Distinct buffer numbers: operands, results and workspaces are numbered in this order.
    buffers: tuple[int, ...]
    #: Workgroups along x, y and z.
    groups: tuple[int, int, int]
    #: Multiplications, or other iterations of innermost loops, if there may be very many.
    work: int = 0
    #: Generates a faster module that takes longer to compile and gives the same bits; None if there is none.
    better: Callable[[], ShaderModule] | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """The WGSL of its shader."""
        return self.shader.text

    @property
    def best(self) -> str:
        """The WGSL of the fastest shader, however long it takes to compile."""
        return self.source if self.better is None else self.better().text

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the buffers that it writes."""
        return frozenset([self.buffers[binding] for binding in self.written_bindings])

    @property
    def written_bindings(self) -> frozenset[int]:
        """The numbers of the bindings that the shader declares as ``read_write``."""
        return frozenset([number for number, binding in enumerate(self.shader.bindings) if binding.written])


@dataclass(frozen=True)
class Routine:
    """The dispatches of a kernel or an equation."""

    dispatches: tuple[Dispatch, ...]
    #: Bytes of each workspace, a buffer with undefined contents.
    workspaces: tuple[int, ...] = ()


class Workspaces:
    """The workspaces of a routine, numbered after its operands and results."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        """Add a workspace of `size` bytes, and return its buffer's number."""
        self.sizes.append(size)
        return self._first + len(self.sizes) - 1

    def words(self, count: int) -> int:
        """Add a workspace of `count` words of 32 bits, and return its buffer's number."""
        return self.new(4 * count)

    def size_of(self, number: int) -> int:
        """Return the bytes of a workspace by its buffer's number."""
        return self.sizes[number - self._first]


def grid(count: int, most: int = 65535) -> tuple[int, int, int]:
    """Return a grid of at least `count` workgroups.

    Shaders index them by ``id.x + id.y * x``; those from `count` on have nothing to do.
    """
    if count <= most:
        return count, 1, 1
    rows = -(-count // most)
    return -(-count // rows), rows, 1
