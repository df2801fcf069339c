"""Fuse equations into kernels.

In the order in which to read: `group` (a kernel under construction), `merge` (two groups as one), `fuse` (which are merged), `recompute`
(values computed again rather than stored, by `min_cut`), and `emit_kernels` (groups to kernels, split where they are too large). After
fusion, targets may add passes: `duplicate_outputs` stores values several times to save copies, `split_k` splits the sums of matrix
products and has consumers add the partial sums (by prologue fusion), and `deferral` moves independent kernels next to each other.
"""
