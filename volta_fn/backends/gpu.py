"""GPUs as devices, through wgpu, which is loaded when they are first asked for."""

from __future__ import annotations

import importlib

from volta_fn.core.device import Device, register_platform


def _discover() -> list[Device]:
    found: list[Device] = importlib.import_module("volta_fn.backends.wgsl.runtime.backend").discover()
    return found


register_platform("gpu", _discover)
