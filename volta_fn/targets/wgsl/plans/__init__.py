"""Compile programs to plans for a GPU, which need no device.

In the order in which to read: `commands` (a compiled program, with dispatches split, merged and fused), `writer` (items to commands), and
`program_plan` (all of that, from a device's capabilities alone, and its verification).
"""
