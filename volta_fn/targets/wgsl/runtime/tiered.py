"""Upgrades: faster shaders, compiled in the background while others already do their work.

A program begins with shaders that compile quickly. Where there is a faster one that gives the same bits, it takes the other's place once it
is compiled. Programs that are called only once do not ask for it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.wgpu_ffi import log

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.pipelines import Key, Pipelines
    from volta_fn.targets.wgsl.shader_module import ShaderModule

#: Compiling threads, at most, and by what the number of processors is divided: the others are the program's.
_THREADS, _PART = 8, 2


class Upgrades:
    """The shaders still to be compiled for a device, and the threads that do it."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self._asked: set[Key] = set()
        self._waiting: deque[tuple[Key, Callable[[], ShaderModule]]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        #: How often pipelines were replaced: commands that were recorded before still have the others.
        self.rounds = 0

    def begin(self, wanted: Iterable[tuple[Key, Callable[[], ShaderModule]]]) -> None:
        """Compile faster shaders for existing pipelines, by their keys, unless that was asked for before."""
        with self._changed:
            for key, better in wanted:
                if key not in self._asked:
                    self._asked.add(key)
                    self._waiting.append((key, better))
            for _ in range(min(len(self._waiting), _THREADS, max(1, (os.cpu_count() or 1) // _PART)) - self._threads):
                self._threads += 1
                threading.Thread(target=self._work, name="volta_fn compiles").start()

    def settle(self) -> None:
        """Return when nothing is being compiled any more."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)

    def _work(self) -> None:
        """Compile, one after the other, until nothing is left, or the process ends."""
        while True:
            with self._changed:
                if not self._waiting or not threading.main_thread().is_alive():
                    self._threads -= 1
                    self.rounds += not self._threads
                    self._changed.notify_all()
                    return
                (source, count, written), better = self._waiting.popleft()
            try:
                self._pipelines.replace((source, count, written), better().text)
            except DeviceError as error:  # the other one stays: it does the same
                log.warning("a better shader cannot be compiled: %s", error)
