"""Record and replay command lists: the work of the GPU between steps of the host.

The commands of a program between two steps that need the host are a *command list*. When it is first written to the queue, it is kept as a
*recording*: pipelines, bind groups and grids, which can be written again as long as the blocks of memory are the same. They often are,
since blocks are leased in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.targets.wgsl.runtime.commands import Command, Loop, While, uninterrupted
from volta_fn.targets.wgsl.runtime.submission.queue import Queue
from volta_fn.targets.wgsl.runtime.submission.replay import AT_A_TIME, WORDS, Step, compiled, packed

#: Recordings kept per command list.
_RECORDINGS = 8

#: Bytes of a step in a packed recording.
_STEP = 8 * WORDS


class Recording:
    """The dispatches that a command list wrote to the queue."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        #: The packed steps, made when it is first replayed, and their address.
        self.table: np.ndarray | None = None
        self.first = 0

    def replay(self, queue: Queue) -> bool:
        """Write the recording to the queue by machine code.

        Returns False without a compiler. Errors are reported when the pass is finished.
        """
        write = compiled()
        if write is None:
            return False
        if self.table is None:
            self.table = packed(self.steps)
            self.first = self.table.ctypes.data
        for start in range(0, len(self.steps), AT_A_TIME):
            count = min(AT_A_TIME, len(self.steps) - start)
            write(queue.begin(), self.first + start * _STEP, count)
            queue.wrote(count)
        return True


class CommandList:
    """Commands that run without the host."""

    def __init__(self, commands: list[Command]) -> None:
        self.commands = commands
        #: By the blocks of a call and the iterations of the loops around the list.
        self.recordings: dict[Any, Recording] = {}
        self.trims = -1

    def recording(self, key: tuple[Any, ...], trims: int) -> Recording | None:
        """Return the recording for some blocks and iterations.

        None if there is none, or if blocks were released since.
        """
        if self.trims != trims:
            self.recordings.clear()
            self.trims = trims
        return self.recordings.get(key)

    def keep(self, key: tuple[Any, ...], steps: list[Step]) -> None:
        """Keep what was written for some blocks and iterations."""
        if len(self.recordings) >= _RECORDINGS:
            self.recordings.clear()
        self.recordings[key] = Recording(steps)


def command_lists(commands: Sequence[Command]) -> list[Any]:
    """Group consecutive commands that need no host into command lists."""
    found: list[Any] = []
    pending: list[Command] = []
    for command in [*commands, None]:
        if command is not None and uninterrupted(command):
            pending.append(command)
            continue
        if pending:
            found.append(CommandList(pending))
            pending = []
        if isinstance(command, Loop):
            found.append(Loop(command.number, command.iterations, command_lists(command.body)))
        elif isinstance(command, While):
            found.append(While(command.flag, command_lists(command.body)))
        elif command is not None:
            found.append(command)
    return found
