"""Kernels as shaders: every routine that a GPU has for one, run in several ways."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("GALLIVM_PERF", "nopt")  # Mesa's software GPU need not optimise what it runs once

import volta_fn as vf
from tests.fuzz.kernels import Run
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities, forced
from volta_fn.targets.gpu.backend import GpuBackend
from volta_fn.targets.gpu.device import Gpu
from volta_fn.targets.gpu.driver import BoundDispatch, BoundRange, Readback
from volta_fn.targets.gpu.memory import Block
from volta_fn.targets.gpu.pipelines import ALL, Pipeline
from volta_fn.targets.nvidia import compilation
from volta_fn.targets.wgsl import loops, matmul
from volta_fn.targets.wgsl.loops.emit_values import Buffers
from volta_fn.targets.wgsl.loops.routine import FusedKernels, Member, is_small
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars.number import is_supported
from volta_fn.targets.wgsl.target import WgslTarget

#: Guard bytes before and after an array, and what they are. Results are full of ones before they are written: NaN.
_GUARD, _UNWRITTEN = 0xA5, 0xFF
_AFTER = 64


class CompilerInProcess:
    """Compiles shaders for NVIDIA's driver in this process, instead of the pool.

    Fuzzers run in as many processes as there are CPUs, and a shader that ends LLVM ends one of them, which is reported.
    """

    def prepare(self) -> None:
        """Do nothing: this process is there."""

    def ask(self, request: Sequence[bytes]) -> tuple[bytes, bytes, bytes]:
        """Answer a request by PTX, which the driver links in the context where kernels run."""
        return compilation._answer(*request)


class Shaders:
    """Runs every routine of a kernel on the GPU."""

    fused = True

    def __init__(self) -> None:
        compilation.pool = CompilerInProcess  # type: ignore[assignment]
        backend = vf.devices("gpu")[0].backend
        assert isinstance(backend, GpuBackend)
        self.gpu: Gpu = backend.gpu
        here = self.gpu.capabilities._replace(adapter="")
        #: What every device can do, with the dtypes of this one, and what this one can.
        least = TargetCapabilities(float16=here.float16, float64=here.float64, int64=here.int64, fma=here.fma, subnormals=here.subnormals)
        self.devices = {"": here, "for any device, ": least}
        self.target = WgslTarget(here)
        self.before = max(here.alignment, 4)
        self._numbers = itertools.count(1)

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if shaders may have a dtype."""
        return is_supported(dtype, self.devices[""])

    def runs(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> Iterator[Run]:
        """Run each routine by itself, and those that may be in place; see `Machine`.

        All are submitted at once and read back at once, as that is what takes the time.
        """
        gpu, queue = self.gpu, self.gpu.queue
        pipelines: dict[str, Pipeline] = {}
        with queue.lock:
            runs = [self._written(kernel, inputs, trial, pipelines) for trial in self._trials(kernel)]
        for run in runs:
            yield run.outcome(kernel, len(inputs), self.before, [queue.take(readback).tobytes() for readback in run.readbacks])
        with queue.lock:
            for run in runs:
                for block in run.blocks:
                    gpu.driver.free(block.handle)
                for group in run.groups:
                    gpu.driver.release_group(group)

    def _trials(self, kernel: Kernel) -> Iterator[_Trial]:
        for places in ({}, *_placements(kernel, self.target)):
            routines: dict[tuple[object, ...], tuple[str, Routine]] = {}
            for name, capabilities_ in self.devices.items():
                for way, routine in _routines(kernel, capabilities_, places):
                    key = (tuple([(d.source, d.workgroups, d.buffers) for d in routine.dispatches]), routine.workspaces)
                    routines.setdefault(key, (name + way, routine))
            for way, routine in routines.values():
                for name, texts in _versions(routine).items():
                    yield _Trial(f"{name}{way}" + (f", results in operands {places}" if places else ""), routine, texts, places)

    def _held(self, content: bytes) -> Block:
        """Return memory with guards around some bytes."""
        data = bytes([_GUARD]) * self.before + content + bytes([_GUARD]) * (_padding(content) + _AFTER)
        block = Block(self.gpu.driver.allocate(len(data)), next(self._numbers), len(data))
        self.gpu.queue.write(block, np.frombuffer(data, np.uint8))
        return block

    def _written(self, kernel: Kernel, inputs: Sequence[np.ndarray], trial: _Trial, pipelines: dict[str, Pipeline]) -> _Written:
        """Write the dispatches of a trial to the queue, with memory of their own, and request what is in it afterwards."""
        sizes = [b.size * b.dtype.itemsize for b in kernel.outputs]
        contents = [x.tobytes() for x in inputs]
        for n, size in enumerate(sizes):
            contents.append(inputs[trial.places[n]].tobytes() if n in trial.places else bytes([_UNWRITTEN]) * size)
        contents += [bytes([_UNWRITTEN]) * size for size in trial.routine.workspaces]
        blocks, groups = [self._held(content) for content in contents], []
        for dispatch, text in zip(trial.routine.dispatches, trial.texts, strict=True):
            if text not in pipelines:
                pipelines[text] = self.gpu.pipelines.make(text, len(dispatch.buffers), dispatch.written_bindings, ALL)
            ranges = [BoundRange(blocks[number], self.before, blocks[number].size - self.before) for number in dispatch.buffers]
            groups.append(self.gpu.driver.bind(pipelines[text].layout, ranges))
            self.gpu.queue.play([BoundDispatch(pipelines[text].handle, groups[-1], dispatch.workgroups)])
        readbacks = [self.gpu.queue.request(block, block.size) for block in blocks]
        return _Written(trial.way, blocks, groups, readbacks, contents)


class _Trial(NamedTuple):
    """A routine to be run, with the texts of its shaders, and the operands whose memory results are."""

    way: str
    routine: Routine
    texts: Sequence[str]
    places: Mapping[int, int]


class _Written(NamedTuple):
    """A routine in the queue, its memory, bind groups and readbacks, and what was in its memory."""

    way: str
    blocks: Sequence[Block]
    groups: Sequence[Any]
    readbacks: Sequence[Readback]
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
    if any(d.faster is not None for d in routine.dispatches):
        result["the faster shader of "] = [d.fastest for d in routine.dispatches]
    return result


def _placements(kernel: Kernel, target: WgslTarget) -> list[dict[int, int]]:
    """Return which results may lie in which operands' memory: as many as possible."""
    together: dict[int, int] = {}
    for output in range(len(kernel.stores)):
        for operand in target.overwritable_inputs(kernel, output):
            if output not in together and operand not in together.values():
                together[output] = operand
    return [together] if together else []


def _routines(kernel: Kernel, capabilities: TargetCapabilities, overwrites: Mapping[int, int]) -> Iterator[tuple[str, Routine]]:
    """Yield every routine that may be generated for a kernel, with the choices that are forced for it."""
    if not overwrites:
        for product in matmul.contraction_options(kernel, capabilities):
            if (routine := matmul.contraction(kernel, capabilities, options=product)) is not None:
                yield f"product: {forced(product)}", routine
    for options in loops.options_of(kernel, capabilities):
        yield f"loops: {forced(options)}", loops.routine(kernel, capabilities, overwrites, options)
    if not overwrites and kernel.stores and is_small(kernel, capabilities) and (routine := _with_itself(kernel, capabilities)) is not None:
        yield "in one dispatch with another", routine


def _with_itself(kernel: Kernel, capabilities: TargetCapabilities) -> Routine | None:
    """Return a dispatch of a small kernel twice, first with workspaces for results."""
    count, stores = len(kernel.inputs), len(kernel.stores)
    inputs = tuple(range(count))
    together = FusedKernels(capabilities)
    first = together.add(Member(kernel, Buffers(inputs, tuple(range(count + stores, count + 2 * stores)))))
    if first is None:
        return None
    both = together.add(Member(kernel, Buffers(inputs, tuple(range(count, count + stores)))))
    return None if both is None else Routine((both,), tuple([b.size * b.dtype.itemsize for b in kernel.outputs]))
