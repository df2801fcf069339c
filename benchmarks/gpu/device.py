"""The GPU as the runtime opens it, with its queue, pipelines and capabilities."""

from __future__ import annotations

import volta_fn as vf
from volta_fn.targets.gpu.adapter import Gpu
from volta_fn.targets.gpu.backend import GpuBackend


def opened_gpu() -> Gpu:
    """Open the GPU on which programs run; raise `DeviceError` without one."""
    backend = vf.local_devices(backend="gpu")[0].backend
    assert isinstance(backend, GpuBackend), "devices of the platform 'gpu' have this backend"
    return backend.gpu
