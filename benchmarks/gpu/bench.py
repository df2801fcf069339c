"""Running routines over and over on a GPU, in trusted modules, and timing them without what the host does in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from volta_fn.backends.wgsl.matmul.schedule import Schedule
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.runtime.adapter import adapters, open_device
from volta_fn.backends.wgsl.runtime.pipelines import Binding, Pipeline, Pipelines
from volta_fn.backends.wgsl.runtime.raw import native, wgpu

#: Seconds that a measurement takes, about, and how many are made, of which the least counts.
TURN, TURNS = 0.004, 4


class Bench:
    """A device with buffers and pipelines."""

    def __init__(self) -> None:
        self.opened = open_device(adapters()[0])
        self.device, self.facts = self.opened.device, self.opened.facts
        self.pipelines = Pipelines(self.device, checked=False)
        self.usage = wgpu().BufferUsage
        self.threads = ThreadPoolExecutor(2)

    def compiled(self, routine: Routine) -> Callable[[], list[Pipeline]]:
        """The pipelines of a routine, being made on another thread: a function that waits for them."""
        futures = [self.threads.submit(self.pipelines.find, d.source, len(d.buffers), _written(d)) for d in routine.dispatches]
        return lambda: [future.result() for future in futures]

    def put(self, data: np.ndarray) -> Any:
        """A buffer with an array's bytes."""
        return self.device.create_buffer_with_data(data=data.tobytes(), usage=self.usage.STORAGE | self.usage.COPY_SRC)

    def room(self, size: int) -> Any:
        """A buffer of so many bytes."""
        return self.device.create_buffer(size=max(-(-size // 4) * 4, 16), usage=self.usage.STORAGE | self.usage.COPY_SRC)

    def get(self, buffer: Any, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """What a buffer holds."""
        data = np.frombuffer(self.device.queue.read_buffer(buffer), dtype)
        return data[: int(np.prod(shape))].reshape(shape)

    def run(self, routine: Routine, pipelines: Sequence[Pipeline], buffers: Sequence[Any], times: int = 1) -> float:
        """Run a routine so many times, one after the other. Returns the seconds that all took together."""
        library = native()
        groups = [self._group(pipeline, dispatch, buffers) for pipeline, dispatch in zip(pipelines, routine.dispatches, strict=True)]
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        handle = compute._internal
        for _ in range(times):
            for pipeline, group, dispatch in zip(pipelines, groups, routine.dispatches, strict=True):
                library.lib.wgpuComputePassEncoderSetPipeline(handle, pipeline.handle)
                library.lib.wgpuComputePassEncoderSetBindGroup(handle, 0, group, 0, library.ffi.NULL)
                library.lib.wgpuComputePassEncoderDispatchWorkgroups(handle, *dispatch.groups)
        compute.end()
        commands = encoder.finish()
        self.wait()
        start = time.perf_counter()
        self.device.queue.submit([commands])
        self.wait()
        return time.perf_counter() - start

    def _group(self, pipeline: Pipeline, dispatch: Dispatch, buffers: Sequence[Any]) -> Any:
        bindings = [Binding(_Block(buffers[k]._internal), 0, buffers[k].size) for k in dispatch.buffers]
        return self.pipelines._new_group(pipeline, tuple(bindings))

    def wait(self) -> None:
        """Until all is done."""
        native().lib.wgpuDevicePoll(self.device._internal, 1, native().ffi.NULL)

    def seconds(self, routine: Routine, pipelines: Sequence[Pipeline], buffers: Sequence[Any]) -> float:
        """The time of one run, at best, where many follow one another."""
        self.run(routine, pipelines, buffers)
        once = self.run(routine, pipelines, buffers, 4) / 4
        times = int(min(400, max(4, TURN / once)))
        return min(self.run(routine, pipelines, buffers, times) for _ in range(TURNS)) / times


class Runner:
    """Tries routines on a device."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.buffers: list[Any] = []
        self.operands: Sequence[np.ndarray] = ()

    def trial(self, routine: Routine, operands: Sequence[np.ndarray], size: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
        """See `tuning.Trial`."""
        bench = self.bench
        if self.operands is not operands:
            self.operands, self.buffers = operands, [bench.put(x) for x in operands]
        room = bench.room(size * dtype.itemsize)
        buffers = [*self.buffers, room, *[bench.room(n) for n in routine.workspaces]]
        pipelines = bench.compiled(routine)()
        bench.run(routine, pipelines, buffers)
        return bench.get(room, dtype, (size,)), bench.seconds(routine, pipelines, buffers)


def describe(s: Schedule) -> str:
    """A schedule in short."""
    details = f"u{s.unroll} b{s.band} l{s.lane_rows}x{s.lane_columns} p{s.pad}{'' if s.ahead else ' plain'}"
    return f"{s.rows}x{s.columns}x{s.depth} {s.thread_rows}x{s.thread_columns} /{s.splits} {details}"


class _Block(NamedTuple):
    """What `Pipelines` takes for a buffer."""

    handle: Any


def _written(dispatch: Dispatch) -> frozenset[int]:
    """Which of a dispatch's bindings are written."""
    return frozenset(place for place, number in enumerate(dispatch.buffers) if number in dispatch.written)
