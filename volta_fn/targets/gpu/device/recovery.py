"""Arrays recomputed from copies on the host after the loss of a device.

Every buffer refers to its *origin*: a copy on the host, or the call of a program that computed it and the origins of that call's
arguments. After a number of calls a *checkpoint* copies all arrays that are in use to the host, and drops the record of earlier calls.
When the device is lost, a new one is opened, and the same programs recompute an array from the last copies when it is needed, so that
its bits are the same.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from volta_fn.core.caches import WeakIdentityDict
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.targets.gpu.device.driver import log, lost
from volta_fn.targets.gpu.device.gpu import Gpu, GpuHandle
from volta_fn.targets.gpu.device.memory import Buffer

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
