"""Devices, and arrays that several of them hold.

In the order in which to read: `device` (platforms, devices and the rank of this process), `distribution` (the processes of a program),
`mesh`, `sharding`, `placement` (arrays on several devices), `sharding_propagation`, `device_world` (programs on devices with memories of
their own).
"""
