"""Fuse equations into kernels.

In the order in which to read: `limits` (what a target's kernels may be), `group` (a kernel under construction), `merge` (two groups as
one), `fuse` (which are merged), `recompute` (values computed again rather than stored, by `min_cut`), `split_groups` (splitting groups that
are too large) and `emit_kernels` (groups to kernels). After fusion, `duplicate_outputs` stores values several times to save copies,
`prologue` fuses an elementwise producer into a kernel over rows, `split_k` and `split_k_consumer` split the reductions of matrix products,
and `deferral` moves independent kernels next to each other for horizontal fusion.
"""
