"""Small kernels that follow each other and do not wait for each other: one dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.loops.several import Part, together
from volta_fn.backends.wgsl.loops.step import Buffers
from volta_fn.backends.wgsl.runtime.commands import Command, Run, place
from volta_fn.compiler.kernels.ir import Kernel
from volta_fn.compiler.slots import Block, Slot

#: Buffers that a dispatch of several kernels binds, where the device would allow more.
_BUFFERS = 128


class Written(NamedTuple):
    """A kernel that was written, with the slots and bytes of its inputs and outputs."""

    kernel: Kernel
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    sizes: tuple[int, ...]

    def follows(self, others: Sequence[Written]) -> bool:
        """Whether it may be done at the same time as others: none writes what another one reads or writes."""
        made = {slot for other in others for slot in other.outputs}
        used = made.union(*[other.inputs for other in others])
        return made.isdisjoint(self.inputs) and used.isdisjoint(self.outputs)


class Batch(NamedTuple):
    """Kernels that the last command does, in a list of commands of a block."""

    kernels: tuple[Written, ...]
    run: Run
    commands: list[Command]
    block: Block

    def extended(self, kernel: Written, facts: Facts) -> Run | None:
        """The command that does one more, if there is one."""
        if not kernel.follows(self.kernels):
            return None
        numbers: dict[Slot, int] = {}
        sizes: list[int] = []
        parts = []
        for written in (*self.kernels, kernel):
            for slot, size in zip((*written.inputs, *written.outputs), written.sizes, strict=True):
                if slot not in numbers:
                    numbers[slot] = len(numbers)
                    sizes.append(size)
                elif sizes[numbers[slot]] != size:
                    return None
            parts.append(
                Part(written.kernel, Buffers(*[tuple([numbers[s] for s in slots]) for slots in (written.inputs, written.outputs)]))
            )
        if len(numbers) > _BUFFERS:
            return None
        dispatch = together(parts, facts)
        if dispatch is None:
            return None
        slots = list(numbers)
        places = tuple([place(slots[b], sizes[b]) for b in dispatch.buffers])
        return Run(
            dispatch.source, frozenset([i for i, b in enumerate(dispatch.buffers) if b in dispatch.written]), places, dispatch.groups
        )
