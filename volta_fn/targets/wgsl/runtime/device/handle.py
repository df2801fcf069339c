"""The GPU of an adapter, opened when it is first needed and again after a loss."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from volta_fn.errors import DeviceError
from volta_fn.runtime import variables
from volta_fn.targets.wgsl.matmul.tuned_schedules import find_by
from volta_fn.targets.wgsl.runtime.device.adapter import adapters
from volta_fn.targets.wgsl.runtime.device.autotune import Trials
from volta_fn.targets.wgsl.runtime.device.gpu import Gpu, release_abandoned
from volta_fn.targets.wgsl.runtime.device.memory import Buffer


def open_gpu(adapter: Any) -> Gpu:
    """Open the GPU of an adapter; its products are timed if VOLTA_GPU_TUNE=1."""
    gpu = Gpu(adapter)
    if variables.value_of("VOLTA_GPU_TUNE") == "1":
        find_by(gpu.capabilities.adapter, Trials(gpu))
    return gpu


class GpuHandle:
    """The open GPU of an adapter, which a loss replaces by another one.

    `reopened` is called after that, with the lock of the handle held.
    """

    def __init__(self, adapter: Any, reopened: Callable[[], None]) -> None:
        self.adapter = adapter
        #: The device as it is, which may be lost; None if it was not needed yet.
        self.current: Gpu | None = None
        self._reopened = reopened
        self._lock = threading.Lock()
        #: Makes the elements of a buffer of a lost device again, if there is a policy for that (`recovery`).
        self._remake: Callable[[Gpu, Buffer], None] | None = None

    @property
    def gpu(self) -> Gpu:
        """The open device; a lost one is opened again."""
        before = self.current
        if before is not None and not before.watched.lost:
            return before
        with self._lock:
            if self.current is before:  # no other thread has opened it in the meantime
                gpu = open_gpu(self.adapter) if before is None else self._opened_again()
                if before is not None:
                    gpu.pool.limit = before.pool.limit
                gpu.remake = self._remake
                self.current = gpu
                if before is not None:
                    self._reopened()
            release_abandoned()
            assert self.current is not None
            return self.current

    def remake_by(self, remake: Callable[[Gpu, Buffer], None] | None) -> None:
        """Set the function that makes elements of a lost device again, or none."""
        with self._lock:
            self._remake = remake
            if self.current is not None:
                self.current.remake = remake

    def _opened_again(self) -> Gpu:
        """Open the device after a loss; a reset may have changed what the driver calls it."""
        try:
            return open_gpu(self.adapter)
        except DeviceError:
            adapters.cache_clear()
            self.adapter = next((a for a in adapters() if a.info["device"] == self.adapter.info["device"]), self.adapter)
            return open_gpu(self.adapter)
