"""NVIDIA's driver on a GPU, where there is one: the checks of `on_device`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.targets.nvidia import on_device
from volta_fn.errors import DeviceError
from volta_fn.targets.nvidia.driver import NvidiaDriver
from volta_fn.targets.nvidia.library import gpus


@pytest.mark.parametrize("check", on_device.CHECKS, ids=lambda check: check.__name__)
def test_on_the_device(check: Callable[[NvidiaDriver], None]) -> None:
    try:
        gpus()
    except DeviceError as error:
        pytest.skip(error.message)
    device = on_device.opened()
    check(device)
    device.destroy()
