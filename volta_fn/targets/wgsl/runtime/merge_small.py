"""Merge small, independent kernels that follow each other into one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.compiler.buffers.buffer_assignment import Block, Slot
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.horizontal import FusedKernels, Member
from volta_fn.targets.wgsl.loops.kernel_step import Buffers
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.runtime.commands import Command, Run, range_of

#: The most buffers that a dispatch of several kernels binds.
_BUFFERS = 64


class Written(NamedTuple):
    """A kernel that was emitted, with the slots and bytes of its inputs and outputs."""

    kernel: Kernel
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    sizes: tuple[int, ...]

    def follows(self, others: Sequence[Written]) -> bool:
        """Return whether it is independent: no kernel writes what another one uses."""
        made = {slot for other in others for slot in other.outputs}
        used = made.union(*[other.inputs for other in others])
        return made.isdisjoint(self.inputs) and used.isdisjoint(self.outputs)


class Batch:
    """The kernels that the last command computes, in a list of commands of a block."""

    def __init__(self, kernel: Written, run: Run, commands: list[Command], block: Block) -> None:
        self.kernels, self.run, self.commands, self.block = [kernel], run, commands, block
        self._several: FusedKernels | None = None
        #: The binding numbers of slots, and their bytes.
        self._numbers: dict[Slot, int] = {}
        self._sizes: list[int] = []

    def extended(self, kernel: Written, capabilities: TargetCapabilities) -> Run | None:
        """Return the command that computes one more kernel.

        None if the batch cannot be extended any further.
        """
        if not kernel.follows(self.kernels):
            return None
        new = [kernel]
        if self._several is None:
            self._several = FusedKernels(capabilities)
            new = [*self.kernels, kernel]
        dispatch = None
        for one in new:
            dispatch = self._add(one)
            if dispatch is None:
                return None
        assert dispatch is not None
        slots = list(self._numbers)
        self.kernels.append(kernel)
        self.run = Run.of(dispatch, [range_of(slot, size) for slot, size in zip(slots, self._sizes, strict=True)])
        return self.run

    def _add(self, kernel: Written) -> Dispatch | None:
        assert self._several is not None
        for slot, size in zip((*kernel.inputs, *kernel.outputs), kernel.sizes, strict=True):
            if self._numbers.setdefault(slot, len(self._sizes)) == len(self._sizes):
                self._sizes.append(size)
            elif self._sizes[self._numbers[slot]] != size:
                return None
        if len(self._sizes) > _BUFFERS:
            return None
        inputs, outputs = [tuple([self._numbers[s] for s in slots]) for slots in (kernel.inputs, kernel.outputs)]
        return self._several.add(Member(kernel.kernel, Buffers(inputs, outputs)))
