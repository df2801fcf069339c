"""The GPU as the runtime opens it, with its queue, pipelines and capabilities."""

from __future__ import annotations

from unittest import mock

import volta_fn as vf
from volta_fn.targets.gpu.backend import GpuBackend
from volta_fn.targets.gpu.device import Gpu
from volta_fn.targets.wgsl import program_plan
from volta_fn.targets.wgsl.target import RoutineCache


def opened_gpu() -> Gpu:
    """Open the GPU on which programs run; raise `DeviceError` without one."""
    backend = vf.local_devices(backend="gpu")[0].backend
    assert isinstance(backend, GpuBackend), "devices of the platform 'gpu' have this backend"
    return backend.gpu


def forget_routines() -> None:
    """Let programs be planned anew, by other schedules than before.

    A plan on disk is named by its program and the package's sources, of which such schedules are none: this process has no use for it.
    """
    opened_gpu().routines = RoutineCache()
    mock.patch.object(program_plan, "cache_dir", return_value=None).start()
