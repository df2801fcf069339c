"""What the GPU does without the host in between.

What a program has the GPU do between two things that the host must do is a *stretch*. Written to the queue for the first time, a stretch
is kept as a *tape*: pipelines, bind groups and grids, which can be written again as long as the blocks are the same. They often are, since
blocks are given out in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.backends.wgsl.runtime.commands import Command, Loop, While, uninterrupted
from volta_fn.backends.wgsl.runtime.queue import Queue
from volta_fn.backends.wgsl.runtime.replay import AT_A_TIME, WORDS, Step, compiled, packed

#: Tapes kept of a stretch.
_TAPES = 8

#: Bytes of a step in a packed tape.
_STEP = 8 * WORDS


class Tape:
    """What a stretch wrote to the queue."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        #: The same for machine code, once it was played again, and where it begins.
        self.table: np.ndarray | None = None
        self.first = 0

    def replay(self, queue: Queue) -> bool:
        """Write it to the queue again, by machine code; False if there is none. What may be wrong shows when a pass is finished."""
        write = compiled()
        if write is None:
            return False
        if self.table is None:
            self.table = packed(self.steps)
            self.first = self.table.ctypes.data
        for start in range(0, len(self.steps), AT_A_TIME):
            part = min(AT_A_TIME, len(self.steps) - start)
            write(queue.begin(), self.first + start * _STEP, part)
            queue.wrote(part)
        return True


class Stretch:
    """Commands without interruption by the host."""

    def __init__(self, commands: list[Command]) -> None:
        self.commands = commands
        #: By the blocks that a call brings and the turns of the loops around.
        self.tapes: dict[Any, Tape] = {}
        self.trims = -1

    def tape(self, key: tuple[Any, ...], trims: int) -> Tape | None:
        """The tape of some blocks and turns, unless blocks were given back since."""
        if self.trims != trims:
            self.tapes.clear()
            self.trims = trims
        return self.tapes.get(key)

    def keep(self, key: tuple[Any, ...], steps: list[Step]) -> None:
        """Keep what was written for some blocks and turns."""
        if len(self.tapes) >= _TAPES:
            self.tapes.clear()
        self.tapes[key] = Tape(steps)


def stretches(commands: Sequence[Command]) -> list[Any]:
    """Commands with those in between which the host has nothing to do put together."""
    found: list[Any] = []
    together: list[Command] = []
    for command in [*commands, None]:
        if command is not None and uninterrupted(command):
            together.append(command)
            continue
        if together:
            found.append(Stretch(together))
            together = []
        if isinstance(command, Loop):
            found.append(Loop(command.number, command.turns, stretches(command.body)))
        elif isinstance(command, While):
            found.append(While(command.flag, stretches(command.body)))
        elif command is not None:
            found.append(command)
    return found
