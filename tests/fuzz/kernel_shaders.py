"""Kernels as shaders: every routine that a GPU has for one, run in several ways."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

os.environ.setdefault("GALLIVM_PERF", "nopt")  # Mesa's software GPU need not optimise what it runs once

import wgpu

from tests.fuzz.kernels import Run
from tests.targets.wgsl.running import capabilities, device
from volta_fn.compiler.ir.analysis import overwritable
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.routines import kernel_routines
from volta_fn.targets.wgsl.scalars.number import is_supported

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
        self._pipelines: dict[str, object] = {}

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if shaders may have a dtype."""
        return is_supported(dtype, self.devices[""])

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[Run]:
        """Run each routine by itself, and those that may be in place; see `Machine`."""
        self._pipelines.clear()
        for places in ({}, *_placements(kernel)):
            routines: dict[tuple[object, ...], tuple[str, Routine]] = {}
            for name, one in self.devices.items():
                for way, routine in kernel_routines(kernel, one, places):
                    key = (tuple([(d.source, d.groups, d.buffers) for d in routine.dispatches]), routine.workspaces)
                    routines.setdefault(key, (name + way, routine))
            for way, routine in routines.values():
                for name, texts in _versions(routine).items():
                    results, fault = self._run(kernel, routine, texts, inputs, places)
                    yield Run(f"{name}{way}" + (f", results in operands {places}" if places else ""), results, fault)

    def _pipeline(self, source: str) -> object:
        if source not in self._pipelines:
            module = device().create_shader_module(code=source)
            self._pipelines[source] = device().create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
        return self._pipelines[source]

    def _held(self, content: bytes) -> object:
        rest = -len(content) % 4 + 4 * (not content)
        data = bytes([_GUARD]) * self.before + content + bytes([_GUARD]) * (rest + _AFTER)
        return device().create_buffer_with_data(data=data, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC)

    def _run(
        self, kernel: Kernel, routine: Routine, texts: Sequence[str], inputs: Sequence[np.ndarray], places: Mapping[int, int]
    ) -> tuple[list[np.ndarray], str]:
        """Return the results of shaders, and which bytes changed that should not."""
        sizes = [b.size * b.dtype.itemsize for b in kernel.outputs]
        contents = [x.tobytes() for x in inputs]
        contents += [inputs[places[n]].tobytes() if n in places else bytes([_UNWRITTEN]) * size for n, size in enumerate(sizes)]
        contents += [bytes([_UNWRITTEN]) * size for size in routine.workspaces]
        held = [self._held(content) for content in contents]
        encoder = device().create_command_encoder()
        run = encoder.begin_compute_pass()
        for dispatch, text in zip(routine.dispatches, texts, strict=True):
            pipeline = self._pipeline(text)
            entries = []
            for binding, number in enumerate(dispatch.buffers):
                resource = {"buffer": held[number], "offset": self.before, "size": held[number].size - self.before}  # type: ignore[attr-defined]
                entries.append({"binding": binding, "resource": resource})
            run.set_pipeline(pipeline)
            layout = pipeline.get_bind_group_layout(0)  # type: ignore[attr-defined]
            run.set_bind_group(0, device().create_bind_group(layout=layout, entries=entries))
            run.dispatch_workgroups(*dispatch.groups)
        run.end()
        device().queue.submit([encoder.finish()])
        fault, after = "", []
        for number, (buffer, content) in enumerate(zip(held, contents, strict=True)):
            data = bytes(device().queue.read_buffer(buffer))
            start, end = self.before, self.before + len(content) + -len(content) % 4 + 4 * (not content)
            output = number - len(inputs)
            name = f"x{number}" if output < 0 else f"y{output}" if output < len(sizes) else "a workspace"
            if data[:start] != bytes([_GUARD]) * start or data[end:] != bytes([_GUARD]) * _AFTER:
                fault = fault or f"bytes next to {name} changed"
            after.append(data[start : start + len(content)])
            if output < 0 and after[-1] != content:
                fault = fault or f"{name} changed"
        results = [np.frombuffer(after[len(inputs) + n], b.dtype) for n, b in enumerate(kernel.outputs)]
        return results, fault


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
