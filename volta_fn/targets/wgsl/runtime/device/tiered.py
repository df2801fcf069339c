"""Compile shaders in tiers: faster ones in the background while others run.

A program starts with shaders that compile quickly. A faster one with the same bits replaces such a shader once it is compiled. Programs
that are called only once request none.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.device.wgpu_ffi import log

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.device.pipelines import Key, Pipelines
    from volta_fn.targets.wgsl.shader_module import ShaderModule

#: Threads that compile, at most, and as a fraction of the CPUs: the others belong to the program.
_THREADS, _CPU_FRACTION = 8, 2


class Upgrades:
    """The faster shaders to be compiled, and the threads that compile them."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self._waiting: deque[tuple[Key, Callable[[], ShaderModule]]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        #: How often pipelines were replaced: older recordings still hold the replaced ones.
        self.rounds = 0

    def begin(self, wanted: Iterable[tuple[Key, Callable[[], ShaderModule]]]) -> None:
        """Compile faster shaders for existing pipelines, unless requested before."""
        with self._changed:
            for key, better in wanted:
                pipeline = self._pipelines.find(*key)
                if not pipeline.has_better:
                    pipeline.has_better = True
                    self._waiting.append((key, better))
            for _ in range(min(len(self._waiting), _THREADS, max(1, (os.cpu_count() or 1) // _CPU_FRACTION)) - self._threads):
                self._threads += 1
                threading.Thread(target=self._work, name="volta_fn compiles").start()

    def settle(self) -> None:
        """Wait until no shader is being compiled."""
        with self._changed:
            self._changed.wait_for(lambda: not self._threads)

    def _work(self) -> None:
        """Compile until no request is left or the main thread has ended."""
        while True:
            with self._changed:
                if not self._waiting or not threading.main_thread().is_alive():
                    self._threads -= 1
                    self.rounds += not self._threads
                    self._changed.notify_all()
                    return
                key, better = self._waiting.popleft()
            try:
                self._pipelines.replace(key, better().text)
            except DeviceError as error:  # the slower one remains
                log.warning("a faster shader cannot be compiled: %s", error)
