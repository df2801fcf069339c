"""The GPU as a backend: buffers, single primitives, and whole programs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.device import Device, Hardware, MemoryStats, WorkStats
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.core.primitive import Primitive
from volta_fn.targets.wgsl.runtime.adapter import adapters
from volta_fn.targets.wgsl.runtime.gpu import Counters, Gpu
from volta_fn.targets.wgsl.runtime.memory import Buffer, exclusive
from volta_fn.targets.wgsl.runtime.program import Program


class GpuBackend:
    """One GPU. It is opened when it is first needed."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self._gpu: Gpu | None = None
        self._lock = threading.Lock()

    @property
    def gpu(self) -> Gpu:
        """The device, opened; again if it was lost."""
        found = self._gpu
        if found is not None and not found.watched.lost:
            return found
        with self._lock:
            if self._gpu is found:  # no other thread has opened it meanwhile
                self._gpu = Gpu(self.adapter)
                if found is not None:
                    self._gpu.pool.limit = found.pool.limit
            assert self._gpu is not None
            return self._gpu

    def put(self, values: np.ndarray) -> Buffer:
        """A buffer with these elements."""
        return self.gpu.put(values)

    def get(self, buffer: Buffer) -> np.ndarray:
        """A buffer's elements, when they are computed."""
        return self.gpu.get(buffer)

    def wait(self, buffer: Buffer) -> None:
        """Return when the buffer's elements are computed."""
        self.gpu.wait(buffer)

    def known(self, buffer: Buffer) -> np.ndarray | None:
        """The elements, if they are there to read without asking the device."""
        return buffer.known

    def exclusive(self, buffers: Sequence[Buffer]) -> bool:
        """Whether no other buffers have the same memory as one of these."""
        return exclusive(buffers)

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Any) -> Callable[..., Any]:
        """A primitive as a function of buffers, giving a buffer or (for several results) a tuple of buffers."""
        invars = [Var(a) for a in avals]
        made = primitive.abstract(*avals, **params)
        outvars = [Var(a) for a in (made if primitive.multiple_results else (made,))]
        eqn = Equation(primitive, [*invars], outvars, params)
        program = self._compiled(ClosedJaxpr(Jaxpr([], invars, [*outvars], [eqn])), (), pipeline, reads_ahead=False)
        if primitive.multiple_results:
            return functools.partial(program, False)
        return lambda *buffers: program(False, *buffers)[0]

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Any) -> Callable[..., tuple[Any, ...]]:
        """A program as a function (donate, *buffers) -> buffers."""
        return self._compiled(closed, donated, pipeline, reads_ahead=True)

    def _compiled(
        self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Any, *, reads_ahead: bool
    ) -> Callable[..., tuple[Any, ...]]:
        program = Program(self.gpu, closed, donated, pipeline, reads_ahead=reads_ahead)

        def run(donate: bool, *buffers: Buffer) -> tuple[Buffer, ...]:
            nonlocal program
            if program.gpu.watched.lost:
                program = Program(self.gpu, closed, donated, pipeline, reads_ahead=reads_ahead)
            return program(donate, *buffers)

        return run

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Any) -> int:
        """The bytes that a program needs at most for values that are neither arguments nor results."""
        return Program(self.gpu, closed, donated, pipeline, called=False).temporaries

    def hardware(self) -> Hardware:
        """The device as it was opened: with fewer features and lower limits than it has, if that was asked for."""
        opened = self.gpu.opened
        return Hardware(opened.kind, opened.features, opened.limits)

    def memory(self) -> MemoryStats:
        """The device's memory."""
        return self.gpu.memory()

    def work(self) -> WorkStats:
        """What the device has been given to do."""
        queue = self.gpu.queue
        under_way = queue.submitted - queue.done
        return WorkStats(queue.dispatches, queue.submitted, under_way, queue.reads, queue.waits, queue.waited, queue.timeouts)

    def synchronize(self, timeout: float | None) -> None:
        """Return when all of it is done."""
        self.gpu.queue.wait(timeout=timeout)

    def limit_memory(self, most: int | None) -> None:
        """Allow so many bytes at most (None: as many as there is room for)."""
        self.gpu.pool.limit = most

    def free_memory(self) -> None:
        """Give back memory that is only kept to be used again."""
        self.gpu.free_memory()

    @property
    def counters(self) -> Counters:
        """What the device has done so far."""
        return self.gpu.counters


def discover() -> list[Device]:
    """The machine's GPUs."""
    return [Device("gpu", number, adapter.info["device"], GpuBackend(adapter)) for number, adapter in enumerate(adapters())]
