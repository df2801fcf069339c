"""Kernels: loops over scalar operations, the form in which every backend gets programs.

In the order in which to read: `index` (affine indices), `ir` (what a kernel is), `check` (when it is well formed), `printing`,
`interpret` (what it means, in NumPy), `views` (equations that are only indices), `roles` (which others can be in kernels), `lower`
(equations to kernels), and fusion: `limits` (what a backend's kernels may be), `group` (a kernel in the making), `merge` (two becoming
one), `fuse` (who joins whom), `recompute` (what is not stored; by `cut`), `pieces` (one becoming several), `signature` (which are the
same) and `emit` (groups to kernels). Before fusion, `random` bits and `one_of_each` row are written out; behind it, kernels store values
`again`, some are `joined`, or `stacked`. Code generators begin with `axes` (a kernel in fewer axes), `facts` (what follows from one),
`contraction` (kernels that are products), `overwrite` (which memory may be an output's) and `window` (kernels cut for large arrays).
"""
