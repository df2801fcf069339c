"""Kernels: loops over scalar operations, the form in which code generators get programs.

In the order in which to read: `index` (affine indices), `ir` (what a kernel is), `check` (well-formedness), `printing`, `interpret` (its
semantics, in NumPy), `views` (equations that only change indices), `roles` (which other equations can be in kernels), `lower` (equations to
kernels), and fusion: `limits` (what a backend's kernels may be), `group` (a kernel under construction), `merge` (two groups as one),
`fuse` (which are merged), `recompute` (values computed again rather than stored; by `cut`), `pieces` (splitting groups that are too
large), `signature` (equal kernels) and `emit` (groups to kernels). Before fusion, `random` bits and `one_of_each` row are expanded; after
it, values are stored `again` to save copies, and kernels are `joined` or `stacked`. Code generators begin with `axes` (a kernel in fewer
axes), `facts` (properties of a kernel), `contraction` (kernels that are products), `overwrite` (which inputs' memory an output may reuse)
and `window` (kernels cut for large arrays).
"""
