"""Run routines on a GPU many times, and time them without the host's work."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.gpu.device import opened_gpu
from volta_fn.targets.wgpu import adapters, native, wgpu
from volta_fn.targets.wgsl.matmul.tiles import Schedule
from volta_fn.targets.wgsl.routine import Dispatch, Routine

#: Seconds that a measurement takes at least, unless it is of so many runs, and how many are made, of which the least counts.
SAMPLE, MOST, SAMPLES = 0.004, 1024, 6

#: Seconds after which a GPU that had nothing to do is as fast as it can be: memory takes a tenth of a second, processors longer (GELU of
#: 64M floats: 161 µs after 0.4 s, 136 after 0.9). A GPU with little to do lowers its clock within seconds, from 1980 to 600 MHz, unless
#: CUDA is in use too.
WAKING = 1.0


class Bench:
    """A device with buffers and pipelines."""

    def __init__(self) -> None:
        driver = adapters()[0].open()
        self.name, self.device = driver.description.name, driver.classes
        #: The same device as programs have it, and what they are compiled with: what it was seen to do, too.
        self.gpu = opened_gpu()
        self.capabilities = self.gpu.capabilities
        self.usage = wgpu().BufferUsage
        self.threads = ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 2))
        self.pipelines: dict[str, Future[Any]] = {}

    def compiled(self, routine: Routine) -> list[Future[Any]]:
        """Return the pipelines of a routine, which other threads compile."""
        for dispatch in routine.dispatches:
            if dispatch.fastest not in self.pipelines:
                self.pipelines[dispatch.fastest] = self.threads.submit(self._compile, dispatch.fastest)
        return [self.pipelines[dispatch.fastest] for dispatch in routine.dispatches]

    def _compile(self, source: str) -> Any:
        module = self.device.create_shader_module(code="@compute @workgroup_size(1) fn main() {}")
        library, text = native(), source.encode()
        characters = library.ffi.new("char[]", text)
        code = library.ffi.new("WGPUShaderSourceWGSL *")
        code.chain.sType = library.lib.WGPUSType_ShaderSourceWGSL
        code.code.data, code.code.length = characters, len(text)
        descriptor = library.ffi.new("WGPUShaderModuleDescriptor *", {"nextInChain": library.ffi.addressof(code, "chain")})
        module._internal = library.lib.wgpuDeviceCreateShaderModuleTrusted(self.device._internal, descriptor, 0)
        return self.device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})

    def put(self, data: np.ndarray) -> Any:
        """Make a buffer with an array's bytes."""
        return self.device.create_buffer_with_data(data=data.tobytes(), usage=self.usage.STORAGE | self.usage.COPY_SRC)

    def room(self, size: int) -> Any:
        """Make a buffer of so many bytes."""
        return self.device.create_buffer(size=max(-(-size // 4) * 4, 16), usage=self.usage.STORAGE | self.usage.COPY_SRC)

    def get(self, buffer: Any, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Read a buffer as an array."""
        data = np.frombuffer(self.device.queue.read_buffer(buffer), dtype)
        return data[: int(np.prod(shape))].reshape(shape)

    def run(self, routine: Routine, buffers: Sequence[Any], times: int = 1) -> float:
        """Run a routine several times in a row; return the seconds of all runs."""
        pipelines = [future.result() for future in self.compiled(routine)]
        groups = [self._group(pipeline, d, buffers) for pipeline, d in zip(pipelines, routine.dispatches, strict=True)]
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for number in range(times):
            for pipeline, group, dispatch in zip(pipelines, groups, routine.dispatches, strict=True):
                if number == 0 or len(groups) > 1:
                    compute.set_pipeline(pipeline)
                    compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*dispatch.workgroups)
        compute.end()
        commands = encoder.finish()
        self.wait()
        start = time.perf_counter()
        self.device.queue.submit([commands])
        self.wait()
        return time.perf_counter() - start

    def _group(self, pipeline: Any, dispatch: Dispatch, buffers: Sequence[Any]) -> Any:
        entries = [{"binding": i, "resource": {"buffer": buffers[k]}} for i, k in enumerate(dispatch.buffers)]
        return self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)

    def wait(self) -> None:
        """Wait until all work is done."""
        native().lib.wgpuDevicePoll(self.device._internal, 1, native().ffi.NULL)

    def seconds(self, routine: Routine, buffers: Sequence[Any], *, wake: float = 0.0) -> float:
        """Return the least time of one run of many in a row, after `wake` seconds of work.

        The host learns late that all is done, which would be 2 to 5 % of the measurement: so the time of one run with its wait is
        subtracted from that of one run and many more. Both are measured equally often, and the runs are so many that a host which is
        late by a tenth of a millisecond changes little.
        """
        more = 4
        while self.run(routine, buffers, more) < SAMPLE and more < MOST:
            more *= 2
        end = time.perf_counter() + wake
        while time.perf_counter() < end:
            self.run(routine, buffers, more)
        pairs = [(self.run(routine, buffers, 1 + more), self.run(routine, buffers)) for _ in range(SAMPLES)]
        many, one = (min(times) for times in zip(*pairs, strict=True))
        return (many - one) / more


class Runner:
    """Tries routines on a device."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.buffers: list[Any] = []
        self.operands: Sequence[np.ndarray] = ()

    def trial(self, routine: Routine, operands: Sequence[np.ndarray], size: int, dtype: np.dtype) -> tuple[np.ndarray, float]:
        """Run a routine; see `tuning.Trial`."""
        bench = self.bench
        if self.operands is not operands:
            self.operands, self.buffers = operands, [bench.put(x) for x in operands]
        room = bench.room(size * dtype.itemsize)
        buffers = [*self.buffers, room, *[bench.room(n) for n in routine.workspaces]]
        bench.run(routine, buffers)
        return bench.get(room, dtype, (size,)), bench.seconds(routine, buffers)


def describe(s: Schedule) -> str:
    """Describe a schedule briefly."""
    details = f"u{s.unroll} b{s.band} l{s.lane_rows}x{s.lane_columns} p{s.pad}{'' if s.ahead else ' plain'}"
    return f"{s.rows}x{s.columns}x{s.depth} {s.thread_rows}x{s.thread_columns} /{s.splits} {details}"
