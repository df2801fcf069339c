"""Compile programs to plans for a GPU, which need no device.

In the order in which to read: `commands` (what a program consists of, and the fusion of independent dispatches), `writer` (items, loops and
branches to commands), and `program_plan` (all of that, from a device's capabilities alone, and its verification).
"""
