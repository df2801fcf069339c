"""Devices, and arrays that several of them hold.

In the order in which to read: `device` (platforms, devices and the rank of this process), `distribution` (the processes of a program),
`sharding` (meshes, which device holds which elements), `propagation` (how that follows from operands to results), `placement` (arrays
on several devices), `device_world` (programs on devices with memories of their own).
"""
