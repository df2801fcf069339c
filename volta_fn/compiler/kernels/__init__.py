"""Kernels: loops over scalar operations, the form in which every backend gets programs.

In the order in which to read: `index` (affine indices), `ir` (what a kernel is), `check` (when it is well formed), `printing`,
`interpret` (what it means, in NumPy), `views` (equations that are only indices), `lower` (equations to kernels), and fusion: `group`
(a kernel in the making), `merge` (two becoming one), `pieces` (one becoming several), `fuse` (who joins whom).
"""
