"""Run programs on devices: one package for each target.

It registers the platforms, whose targets are loaded when their devices are first asked for. The CPU is one device (`cpu_device`) with two
targets: `numpy`, which defines the semantics of every primitive, and `cpu`, native machine code. `wgsl` serves every GPU: it makes plans of
shaders, which `gpu` runs through a driver. `wgpu` drives GPUs of every vendor, and `nvidia` those of NVIDIA by their own driver, with
products on matrix units, whose epilogues are printed as `cpu` prints scalars. `wasm` compiles the routines of `cpu` to WebAssembly. No
target knows of transforms, and targets import one another in two further cases only: `cpu` and `wgsl` let `numpy` compute equations that
they have no code for, and drivers import the interface that `gpu` defines.
"""

from __future__ import annotations

from volta_fn.core.devices.device import register_platform
from volta_fn.lazy_imports import deferred

register_platform("cpu", deferred("volta_fn.targets.cpu_device"))
register_platform("gpu", deferred("volta_fn.targets.gpu.backend"))
