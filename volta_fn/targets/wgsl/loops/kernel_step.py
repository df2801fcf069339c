"""Steps: kernels that are one dispatch each, of which a kernel may become several."""

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
    #: Turns in which this does not hold are none.
    bound: Range | None = None
    #: The number of an element in its row, where that is not the row-major one.
    number: Affine | None = None

    @property
    def bindings(self) -> int:
        """How many buffers it binds."""
        read = {self.buffers.inputs[node.input] for node in self.kernel.nodes if isinstance(node, Load)}
        return len(read.union(self.buffers.outputs))
