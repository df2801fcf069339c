"""Kernels as shaders: every routine that a GPU has for one, run in several ways."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("GALLIVM_PERF", "nopt")  # Mesa's software GPU need not optimise what it runs once

import wgpu

from tests.fuzz.kernels import Run
from tests.targets.wgsl.running import capabilities, device
from volta_fn.compiler.ir.axes import overwritable
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch, Routine
from volta_fn.targets.wgsl.scalars.number import is_supported
from volta_fn.targets.wgsl.target import all_kernel_routines

#: Guard bytes before and after an array, and what they are. Results are full of ones before they are written: NaN.
_GUARD, _UNWRITTEN = 0xA5, 0xFF
_AFTER = 64


class Shaders:
    """Runs every routine of a kernel on the GPU."""

    fused = True

    def __init__(self) -> None:
        here = capabilities()
        #: What every device can do, with the dtypes of this one, and what this one can.
        least = TargetCapabilities(float16=here.float16, float64=here.float64, int64=here.int64, fma=here.fma, subnormals=here.subnormals)
        self.devices = {"": here, "for any device, ": least}
        self.before = max(here.alignment, 4)
        self._pipelines: dict[str, Any] = {}

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if shaders may have a dtype."""
        return is_supported(dtype, self.devices[""])

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[Run]:
        """Run each routine by itself, and those that may be in place; see `Machine`.

        All are submitted at once and read back at once, as that is what takes the time.
        """
        self._pipelines.clear()
        encoder = device().create_command_encoder()
        runs = [self._encoded(encoder, kernel, inputs, trial) for trial in self._trials(kernel)]
        buffers = [buffer for run in runs for buffer in run.buffers]
        ends = list(itertools.accumulate([buffer.size for buffer in buffers]))
        usage = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        readback = device().create_buffer(size=ends[-1], usage=usage)
        for buffer, end in zip(buffers, ends, strict=True):
            encoder.copy_buffer_to_buffer(buffer, 0, readback, end - buffer.size, buffer.size)
        device().queue.submit([encoder.finish()])
        data = bytes(device().queue.read_buffer(readback))
        after = iter([data[end - buffer.size : end] for buffer, end in zip(buffers, ends, strict=True)])
        for run in runs:
            yield run.outcome(kernel, len(inputs), self.before, [next(after) for _ in run.buffers])

    def _trials(self, kernel: Kernel) -> Iterator[_Trial]:
        for places in ({}, *_placements(kernel)):
            routines: dict[tuple[object, ...], tuple[str, Routine]] = {}
            for name, capabilities_ in self.devices.items():
                for way, routine in all_kernel_routines(kernel, capabilities_, places):
                    key = (tuple([(d.source, d.groups, d.buffers) for d in routine.dispatches]), routine.workspaces)
                    routines.setdefault(key, (name + way, routine))
            for way, routine in routines.values():
                for name, texts in _versions(routine).items():
                    yield _Trial(f"{name}{way}" + (f", results in operands {places}" if places else ""), routine, texts, places)

    def _pipeline(self, source: str, dispatch: Dispatch) -> Any:
        """Return the layout of a dispatch's bindings, of which a shader may leave some unread, and its pipeline."""
        if source not in self._pipelines:
            entries = []
            for binding in range(len(dispatch.buffers)):
                kind = "storage" if binding in dispatch.written_bindings else "read-only-storage"
                entries.append({"binding": binding, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}})
            layout = device().create_bind_group_layout(entries=entries)
            module = device().create_shader_module(code=source)
            pipeline = device().create_compute_pipeline(
                layout=device().create_pipeline_layout(bind_group_layouts=[layout]), compute={"module": module, "entry_point": "main"}
            )
            self._pipelines[source] = layout, pipeline
        return self._pipelines[source]

    def _held(self, content: bytes) -> Any:
        data = bytes([_GUARD]) * self.before + content + bytes([_GUARD]) * (_padding(content) + _AFTER)
        return device().create_buffer_with_data(data=data, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)

    def _encoded(self, encoder: Any, kernel: Kernel, inputs: Sequence[np.ndarray], trial: _Trial) -> _Encoded:
        """Encode the dispatches of a trial, with buffers of its own."""
        sizes = [b.size * b.dtype.itemsize for b in kernel.outputs]
        contents = [x.tobytes() for x in inputs]
        for n, size in enumerate(sizes):
            contents.append(inputs[trial.places[n]].tobytes() if n in trial.places else bytes([_UNWRITTEN]) * size)
        contents += [bytes([_UNWRITTEN]) * size for size in trial.routine.workspaces]
        held = [self._held(content) for content in contents]
        run = encoder.begin_compute_pass()
        for dispatch, text in zip(trial.routine.dispatches, trial.texts, strict=True):
            layout, pipeline = self._pipeline(text, dispatch)
            entries = []
            for binding, number in enumerate(dispatch.buffers):
                resource = {"buffer": held[number], "offset": self.before, "size": held[number].size - self.before}
                entries.append({"binding": binding, "resource": resource})
            run.set_pipeline(pipeline)
            run.set_bind_group(0, device().create_bind_group(layout=layout, entries=entries))
            run.dispatch_workgroups(*dispatch.groups)
        run.end()
        return _Encoded(trial.way, held, contents)


class _Trial(NamedTuple):
    """A routine to be run, with the texts of its shaders, and the operands whose memory results are."""

    way: str
    routine: Routine
    texts: Sequence[str]
    places: Mapping[int, int]


class _Encoded(NamedTuple):
    """A routine on its way, its buffers, and what was in them."""

    way: str
    buffers: Sequence[Any]
    contents: Sequence[bytes]

    def outcome(self, kernel: Kernel, inputs: int, before: int, after: Sequence[bytes]) -> Run:
        """Return the results, and which bytes changed that should not, given what is in the buffers afterwards."""
        fault, results = "", []
        for number, (data, content) in enumerate(zip(after, self.contents, strict=True)):
            output, end = number - inputs, before + len(content) + _padding(content)
            name = f"x{number}" if output < 0 else f"y{output}" if output < len(kernel.outputs) else "a workspace"
            if data[:before] != bytes([_GUARD]) * before or data[end:] != bytes([_GUARD]) * _AFTER:
                fault = fault or f"bytes next to {name} changed"
            inside = data[before : before + len(content)]
            if output < 0 and inside != content:
                fault = fault or f"{name} changed"
            if 0 <= output < len(kernel.outputs):
                results.append(np.frombuffer(inside, kernel.outputs[output].dtype))
        return Run(self.way, results, fault)


def _padding(content: bytes) -> int:
    return -len(content) % 4 + 4 * (not content)


def _versions(routine: Routine) -> dict[str, list[str]]:
    """Return the texts of a routine's shaders: those that begin, and those that replace them."""
    result = {"": [d.source for d in routine.dispatches]}
    if any(d.better is not None for d in routine.dispatches):
        result["the better shader of "] = [d.best for d in routine.dispatches]
    return result


def _placements(kernel: Kernel) -> list[dict[int, int]]:
    """Return which results may lie in which operands' memory: as many as possible."""
    together: dict[int, int] = {}
    for output in range(len(kernel.stores)):
        for operand in overwritable(kernel, output):
            if output not in together and operand not in together.values():
                together[output] = operand
    return [together] if together else []
