"""The GPU as the runtime has it: its queue, pipelines and facts, which benchmarks look at."""

from __future__ import annotations

import volta_fn as vf
from volta_fn.targets.wgsl.runtime.backend import GpuBackend
from volta_fn.targets.wgsl.runtime.gpu import Gpu


def opened_gpu() -> Gpu:
    """The first GPU, opened, the same that programs run on. Raises `DeviceError` if there is none."""
    backend = vf.devices("gpu")[0].backend
    assert isinstance(backend, GpuBackend), "devices of the platform 'gpu' have this backend"
    return backend.gpu
