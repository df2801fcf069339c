"""Steps: kernels that are one dispatch each; a kernel may become several."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.ir.index import Affine, Range
from volta_fn.compiler.ir.kernel import Kernel, Load


class Buffers(NamedTuple):
    """The numbers of the buffers that a kernel's inputs and outputs are."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class KernelStep(NamedTuple):
    """A kernel to be run."""

    kernel: Kernel
    buffers: Buffers
    #: Iterations for which this does not hold are skipped.
    bound: Range | None = None
    #: The index of an element in its row, where that is not the row-major one.
    number: Affine | None = None

    @property
    def bindings(self) -> int:
        """The number of buffers that it binds."""
        read = {self.buffers.inputs[node.input] for node in self.kernel.nodes if isinstance(node, Load)}
        return len(read.union(self.buffers.outputs))
