"""Run programs on devices: one package for each target.

`platforms` registers the devices, whose targets are loaded on first use. The CPU is one device (`cpu_device`) with two targets: `numpy`,
which defines the semantics of every primitive, and `cpu`, native machine code. `wgsl` serves every GPU. No target knows of transforms, and
targets import one another in one case only: `cpu` and `wgsl` let `numpy` compute what they have no code for.
"""
