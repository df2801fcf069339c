"""What a device is asked when it is opened, and what follows from its answers."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as jnp
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.devices.device import Device
from volta_fn.errors import DeviceError
from volta_fn.targets.gpu import pipelines
from volta_fn.targets.gpu.backend import GpuBackend
from volta_fn.targets.gpu.device import Gpu
from volta_fn.targets.wgpu import WgpuDriver

GPU = vf.devices("gpu")[0]


@pytest.mark.parametrize(("wrong", "needed"), [((), pipelines.NONE), ((pipelines.NONE,), pipelines.LOOPS), ((0, 2), pipelines.ALL)])
@pytest.mark.parametrize("fails", [False, True])
def test_shaders_have_the_checks_that_their_driver_needs(
    wrong: tuple[int, ...], needed: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that gives other numbers, or nothing, without checks gets no shader without them."""
    run, module, seen = pipelines._run_selftest, WgpuDriver._module, set[int]()

    def driven(gpu: Gpu, checks: int) -> np.ndarray:
        if checks in wrong and fails:
            raise DeviceError("planted")
        return run(gpu, checks) + np.uint32(checks in wrong)

    monkeypatch.delenv("VOLTA_GPU_CHECKS", raising=False)
    monkeypatch.setattr(pipelines, "_run_selftest", driven)
    device = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    assert device.backend.gpu.pipelines.checks == needed
    monkeypatch.setattr(WgpuDriver, "_module", lambda self, source, checks: seen.add(checks) or module(self, source, checks))
    with vf.default_device(device):
        assert float(vf.jit(lambda x: (x * x).sum())(jnp.arange(5.0))) == 30
    assert seen == {needed}


def test_all_checks_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_GPU_CHECKS", "1")
    assert GpuBackend(GPU.backend.handle.adapter).gpu.pipelines.checks == pipelines.ALL


def test_loops_are_tried_where_the_device_is_software(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPU.backend.gpu
    if GPU.kind == "cpu":
        assert pipelines.loop_iterations(gpu) == gpu.capabilities.iterations
    monkeypatch.setattr(pipelines, "_ITERATIONS", 1000)
    assert pipelines.loop_iterations(gpu) == TargetCapabilities().iterations
