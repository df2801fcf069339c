"""The backend of a GPU, the machine's GPUs, and recovery after a loss."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np

from volta_fn.compiler.target import Passes
from volta_fn.core.caches import WeakIdentityDict
from volta_fn.core.devices.device import Device, Executable, Hardware, MemoryStats, WorkStats
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.lazy_imports import load
from volta_fn.settings import value_of
from volta_fn.targets.gpu.device import Counters, Gpu, GpuHandle
from volta_fn.targets.gpu.driver import Adapter, log, lost
from volta_fn.targets.gpu.memory import Buffer, exclusive
from volta_fn.targets.gpu.program import Program, TimedProgram
from volta_fn.targets.wgsl.scalars import is_supported

# The backend.

_T = TypeVar("_T")


class GpuBackend:
    """One GPU, which is opened when it is first needed."""

    def __init__(self, adapter: Adapter) -> None:
        #: The compiled programs that are in use.
        self._programs: WeakIdentityDict[CompiledProgram, None] = WeakIdentityDict()
        self.handle = GpuHandle(adapter, self._drop_programs)
        #: The policy for the loss of the device, if `set_recovery` set one.
        self.recovery: Recovery | None = None

    @property
    def gpu(self) -> Gpu:
        """The open device; a lost one is opened again."""
        return self.handle.gpu

    def _drop_programs(self) -> None:
        """Free the lost device's programs, which would keep it; calls compile them again."""
        for compiled in self._programs:
            compiled.program = None

    def recover(self, every: int | None) -> None:
        """Survive the loss of the device, with copies to the host after some calls.

        There are `every` calls between copies; None disables recovery.
        """
        self.recovery = None if every is None else Recovery(self.handle, every)
        self.handle.remake_by(None if self.recovery is None else self.recovery.remake)

    def surviving(self, operation: Callable[[], _T]) -> _T:
        """Return the result of an operation, which the recovery policy may repeat."""
        recovery = self.recovery
        return operation() if recovery is None else recovery.surviving(operation)

    @property
    def target(self) -> Any:
        """The target that programs are lowered for."""
        return self.gpu.target

    def put(self, values: np.ndarray) -> Buffer:
        """Return a buffer with the elements of an array."""
        buffer = self.surviving(lambda: self.gpu.put(values))
        if self.recovery is not None:
            self.recovery.put(buffer, values)
        return buffer

    def get(self, buffer: Buffer) -> np.ndarray:
        """Return a buffer's elements once they are computed."""
        return self.gpu.get(buffer) if self.recovery is None else self.recovery.surviving(lambda: self.gpu.get(buffer))

    def wait(self, buffer: Buffer) -> None:
        """Wait until a buffer's elements are computed."""
        self.surviving(lambda: self.gpu.wait(buffer))

    def is_ready(self, buffer: Buffer) -> bool:
        """Return whether a buffer's elements are computed."""
        return self.surviving(lambda: self.gpu.is_ready(buffer))

    def host_elements(self, buffer: Buffer) -> np.ndarray | None:
        """Return the elements if they are on the host already."""
        return buffer.host_values

    def exclusive(self, buffers: Sequence[Buffer]) -> bool:
        """Return whether no other buffer shares its memory with one of these."""
        return exclusive(buffers)

    def supports(self, dtype: np.dtype) -> bool:
        """Return True if the device has arrays of this dtype."""
        return is_supported(dtype, self.gpu.capabilities)

    def kernel(self, primitive: Primitive, avals: tuple[Any, ...], params: dict[str, Any], pipeline: Passes) -> Callable[..., Any]:
        """Return a primitive as a function of buffers, to a buffer or a tuple of them."""
        invars = [Var(a) for a in avals]
        out_avals = primitive.abstract(*avals, **params)
        outvars = [Var(a) for a in (out_avals if primitive.multiple_results else (out_avals,))]
        eqn = Equation(primitive, [*invars], outvars, params)
        program = self._compile(ClosedJaxpr(Jaxpr([], invars, [*outvars], [eqn])), (), pipeline, reads_ahead=False)
        if primitive.multiple_results:
            return functools.partial(program, False)
        return lambda *buffers: program(False, *buffers)[0]

    def compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Executable:
        """Compile a program to commands of the device."""
        compiled = self._compile(closed, donated, pipeline, reads_ahead=True)
        return Executable(compiled, submits=compiled.program is not None and compiled.program.submits)

    def _compile(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes, *, reads_ahead: bool) -> CompiledProgram:
        compiled = CompiledProgram(self, closed, donated, pipeline, reads_ahead=reads_ahead)
        self._programs.set(compiled, None)
        return compiled

    def temporaries(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> int:
        """Return the most bytes of values that are neither arguments nor results."""
        return self.surviving(lambda: Program(self.gpu, closed, donated, pipeline, allocate=False)).temporary_bytes

    def timed(self, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes) -> Any:
        """Return a program that notes the time of each dispatch.

        Raises `DeviceError` if the device has no timestamp queries.
        """
        return TimedProgram(self.gpu, closed, donated, pipeline)

    def hardware(self) -> Hardware:
        """Describe the device as it was opened, with the limits in force."""
        description = self.gpu.description
        return Hardware(description.kind, description.features, description.limits, self.handle.adapter.driver)

    def memory(self) -> MemoryStats:
        """Return the device's memory statistics."""
        return self.gpu.memory()

    def work(self) -> WorkStats:
        """Return the device's work statistics."""
        queue = self.gpu.queue
        under_way = queue.submitted - queue.done
        return WorkStats(queue.dispatches, queue.submitted, under_way, queue.reads, queue.waits, queue.waited, queue.timeouts)

    def synchronize(self, timeout: float | None) -> None:
        """Wait until all work is done."""
        self.surviving(lambda: self.gpu.queue.wait(timeout=timeout))

    def limit_memory(self, most: int | None) -> None:
        """Limit the memory to `most` bytes (None: no limit)."""
        self.gpu.pool.limit = most

    def free_memory(self) -> None:
        """Release memory that is only kept for reuse."""
        self.gpu.free_memory()

    @property
    def counters(self) -> Counters:
        """Return the counters of the device's work."""
        return self.gpu.counters


class CompiledProgram:
    """A compiled program as a function ``(donate, *buffers) -> buffers``.

    After a loss of the device it is compiled again by the next call. If the backend has a recovery policy, its calls are recorded.
    """

    def __init__(self, backend: GpuBackend, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Passes, *, reads_ahead: bool) -> None:
        self._backend = backend
        self._closed = closed
        self._effects = bool(closed.effects)
        self._make = lambda: Program(backend.gpu, closed, donated, pipeline, reads_ahead=reads_ahead)
        #: The policy that has recorded the program's constants; another one has to do so again.
        self._recorded_by = backend.recovery
        if self._recorded_by is not None:
            self._recorded_by.keep_constants(closed)
        #: The program on the device; None if that was lost, and the program dropped.
        self.program: Program | None = backend.surviving(self._make)

    def __call__(self, donate: bool, *buffers: Buffer) -> tuple[Buffer, ...]:
        """Run the program."""
        recovery = self._backend.recovery
        if recovery is None:
            return self._run(donate, *buffers)
        if recovery is not self._recorded_by:
            recovery.keep_constants(self._closed)
            self._recorded_by = recovery
        return recovery.call_recorded(self._run, self._effects, donate, buffers)

    def _run(self, donate: bool, *buffers: Buffer) -> tuple[Buffer, ...]:
        """Run the program on the device as it is now."""
        program = self.program
        if program is None or program.gpu.errors.device_lost:
            program = self.program = self._make()
        return program(donate, *buffers)


#: The modules that list the GPUs of a driver, the preferred driver first.
_DRIVERS = {"nvidia": "volta_fn.targets.nvidia.driver", "wgpu": "volta_fn.targets.wgpu"}


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """Return the machine's GPUs, all through one driver, the fastest first.

    It is NVIDIA's own driver if it has a GPU, else wgpu, unless VOLTA_GPU_DRIVER selects one. VOLTA_GPU_ADAPTER selects a GPU by a part of
    its name, through the first driver that has it. Raises `DeviceError` if there is none.
    """
    selected, name = value_of("VOLTA_GPU_DRIVER"), os.environ.get("VOLTA_GPU_ADAPTER", "")
    drivers = [selected] if selected else [*_DRIVERS]
    available: list[Adapter] = []
    for driver in drivers:
        try:
            listed: list[Adapter] = load(_DRIVERS[driver]).adapters()
        except DeviceError:
            if driver == drivers[-1]:
                raise
            continue  # `vf.doctor()` tells why
        chosen = tuple([a for a in listed if name.lower() in a.name.lower()])
        if chosen:
            return chosen
        available += listed
    names = [a.name for a in available]
    raise DeviceError(
        f"no GPU is called {name!r} (VOLTA_GPU_ADAPTER); there are {names}"
        if available
        else "no GPU was found: install a driver for Vulkan, Metal or DirectX 12 (on Linux, mesa-vulkan-drivers has one in software), "
        "or use the device 'cpu'"
    )


#: Variables in which starters of MPI programs tell the rank of a process among those of its machine, and how many processes there are: a
#: single process has all GPUs, also as a job of Slurm, which numbers it, too.
_LOCAL_RANKS = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALRANKID": "MPI_LOCALNRANKS",
    "SLURM_LOCALID": "SLURM_STEP_NUM_TASKS",
}


def discover() -> list[Device]:
    """Return the machine's GPUs.

    If several processes of a program run on the machine, each has one of them, by its rank there.
    """
    gpus = [Device("gpu", number, adapter.name, GpuBackend(adapter)) for number, adapter in enumerate(adapters())]
    numbers = [(os.environ.get(rank, ""), os.environ.get(size, "")) for rank, size in _LOCAL_RANKS.items()]
    ranks = [int(rank) for rank, size in numbers if rank.isdigit() and size.isdigit() and int(size) > 1]
    return [gpus[ranks[0] % len(gpus)]] if ranks else gpus


# Arrays recomputed from copies on the host after the loss of a device.
#
# Every buffer refers to its *origin*: a copy on the host, or the call of a program that computed it and the origins of that call's
# arguments. After a number of calls a *checkpoint* copies all arrays that are in use to the host, and drops the record of earlier calls.
# When the device is lost, a new one is opened, and the same programs recompute an array from the last copies when it is needed, so that its
# bits are the same.

#: The most attempts of an operation. A device that is lost more often than that is broken.
_ATTEMPTS = 16

#: A program as a function ``(donate, *buffers) -> buffers``.
CompiledCall = Callable[..., tuple[Buffer, ...]]


class Origin:
    """The origin of a buffer's elements: a copy on the host, or a recorded call."""

    __slots__ = ("__weakref__", "_owner", "call", "recovery", "saved")

    def __init__(self, recovery: Recovery, owner: Buffer, saved: np.ndarray | None, call: RecordedCall | None) -> None:
        #: The policy that created it; calls without a policy may change the elements.
        self.recovery = recovery
        self._owner = weakref.ref(owner)
        self.saved = saved
        self.call = call

    def buffer(self) -> Buffer | None:
        """Return the buffer that has these elements, if there is still one."""
        owner = self._owner()
        return owner if owner is not None and owner.origin is self else None


class RecordedCall:
    """A call of a program, with the origins of its arguments and results."""

    __slots__ = ("arguments", "number", "program", "results")

    def __init__(self, program: CompiledCall, arguments: list[Origin], number: int) -> None:
        self.program = program
        self.arguments = arguments
        self.number = number
        self.results: list[weakref.ref[Origin]] = []


class Recovery:
    """The copies and recorded calls of one GPU, with the policy of `set_recovery`.

    `lock` is held during calls and copies, so that origins always fit the elements.
    """

    def __init__(self, handle: GpuHandle, every: int) -> None:
        self.handle = handle
        #: Calls between two checkpoints.
        self.every = every
        self.lock = threading.RLock()
        #: Calls since the beginning, and at the last checkpoint.
        self.calls = 0
        self.checkpointed = 0
        #: The number of devices lost so far.
        self.losses = 0
        #: The origins since the last checkpoint.
        self._computed: WeakIdentityDict[Origin, None] = WeakIdentityDict()

    def surviving(self, operation: Callable[[], Any]) -> Any:
        """Return the result of an operation, which is tried again if the device is lost."""
        with self.lock:
            for _ in range(_ATTEMPTS):
                gpu = self.handle.current
                try:
                    return operation()
                except DeviceError:
                    if gpu is not None and self.handle.current is gpu and not gpu.errors.device_lost:
                        raise  # another error; without a device, it was lost while it was opened
                    self.losses += 1
                    log.debug("the GPU was lost; it is opened again")
            return operation()

    def put(self, buffer: Buffer, values: np.ndarray) -> None:
        """Remember the elements of a new buffer, which never change."""
        buffer.origin = Origin(self, buffer, values, None)

    def call_recorded(self, program: CompiledCall, effects: bool, donate: bool, arguments: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """Call a program and record the call."""
        with self.lock:
            origins = self.surviving(lambda: [self.origin(buffer) for buffer in arguments])
            results: tuple[Buffer, ...] = self.surviving(lambda: program(donate, *arguments))
            self.calls += 1
            call = RecordedCall(program, origins, self.calls)
            for result in results:
                result.origin = Origin(self, result, None, call)
                call.results.append(weakref.ref(result.origin))
                self._computed.set(result.origin, None)
            if effects or self.calls - self.checkpointed >= self.every:  # effects do not happen twice
                self.checkpoint()
            return results

    def origin(self, buffer: Buffer) -> Origin:
        """Return the origin of a buffer; a buffer from before the policy is copied now."""
        origin = self._origin_of(buffer)
        if origin is None:
            origin = buffer.origin = Origin(self, buffer, self.handle.gpu.get(buffer), None)
        return origin

    def _origin_of(self, buffer: Buffer) -> Origin | None:
        origin: Origin | None = buffer.origin
        return origin if origin is not None and origin.recovery is self else None

    def keep_constants(self, closed: ClosedJaxpr) -> None:
        """Record an origin for each array on the device that a program has closed over."""
        for array in _constants(closed):
            buffer = array.buffer()
            if isinstance(buffer, Buffer):
                self.surviving(partial(self.origin, buffer))

    def checkpoint(self) -> None:
        """Copy the arrays that were computed since the last time to the host."""
        live = [(origin, buffer) for origin in self._computed if (buffer := origin.buffer()) is not None]
        try:
            with suppress(OutOfMemoryError):  # then the host has room for one after another
                self.surviving(lambda: self._request([buffer for _, buffer in live]))
            for origin, buffer in live:
                origin.saved = self.surviving(partial(self._copied, buffer))
        finally:  # calls that overwrite a large buffer do not expect a readback of its old elements
            for _, buffer in live:
                buffer.readback = None
        for origin, _ in live:
            origin.call = None
        self._computed.clear()
        self.checkpointed = self.calls

    def _copied(self, buffer: Buffer) -> np.ndarray:
        return self.handle.gpu.get(buffer)

    def _request(self, buffers: Iterable[Buffer]) -> None:
        """Request the copies of buffers, so that one wait is enough for all."""
        gpu = self.handle.gpu
        with gpu.queue.lock:
            for buffer in buffers:
                if buffer.host_values is None and buffer.readback is None and buffer.size:
                    lease = gpu.lease_of(buffer)
                    buffer.readback = gpu.queue.request(lease.block, buffer.size)

    def remake(self, gpu: Gpu, buffer: Buffer) -> None:
        """Recompute a buffer's elements, and those of the other results of the same calls.

        Raises `DeviceError` if the buffer has no origin, or if the device is lost again.
        """
        with gpu.queue.lock:
            calls = self._needed(gpu, buffer)
            if not calls:
                assert buffer.origin is not None and buffer.origin.saved is not None
                buffer.lease, buffer.readback = gpu.lease_of(gpu.put(buffer.origin.saved)), None
            uses = Counter([origin for call in calls for origin in call.arguments])
            buffers: dict[Origin, Buffer] = {}
            for call in calls:
                operands = [self._operand(gpu, origin, buffers) for origin in call.arguments]
                results = call.program(False, *operands)
                for origin in call.arguments:
                    uses[origin] -= 1
                    if not uses[origin]:
                        buffers.pop(origin, None)
                for reference, result in zip(call.results, results, strict=True):
                    self._restore(gpu, reference(), result, buffers)

    def _restore(self, gpu: Gpu, origin: Origin | None, result: Buffer, buffers: dict[Origin, Buffer]) -> None:
        if origin is None:
            return
        buffers[origin] = result
        owner = origin.buffer()
        if owner is not None and not gpu.holds(owner):
            owner.lease, owner.readback = gpu.lease_of(result), None

    def _needed(self, gpu: Gpu, buffer: Buffer) -> list[RecordedCall]:
        """Return the calls that a buffer's elements depend on, in order."""
        calls: dict[int, RecordedCall] = {}
        pending = [self._origin_of(buffer)]
        while pending:
            origin = pending.pop()
            if origin is not None and (origin.saved is not None or self._at_hand(gpu, origin)):
                continue
            if origin is None or origin.call is None:
                raise DeviceError(lost(f"The array {buffer.dtype}{list(buffer.shape)}, made before the call of set_recovery,"))
            if origin.call.number not in calls:
                calls[origin.call.number] = origin.call
                pending += origin.call.arguments
        return [calls[number] for number in sorted(calls)]

    def _at_hand(self, gpu: Gpu, origin: Origin) -> bool:
        owner = origin.buffer()
        return owner is not None and (owner.host_values is not None or gpu.holds(owner))

    def _operand(self, gpu: Gpu, origin: Origin, buffers: dict[Origin, Buffer]) -> Buffer:
        owner = origin.buffer()
        if owner is not None and self._at_hand(gpu, origin):
            return owner
        if origin not in buffers:
            assert origin.saved is not None
            buffers[origin] = gpu.put(origin.saved)
        return buffers[origin]


def _constants(closed: ClosedJaxpr) -> Iterator[Any]:
    """Yield the arrays that a program and the programs inside have closed over."""
    pending = [closed]
    while pending:
        program = pending.pop()
        yield from program.consts
        for eqn in program.eqns:
            pending += sub_jaxprs(eqn.params)
