"""Fuse equations into kernels.

In the order in which to read: `groups` (kernels under construction, and when two of them fit in one loop), `fuse` (which are merged, which
values are computed again rather than stored, and the kernels that result). After fusion, targets may add passes of `split_k`: sums of
matrix products split in chunks, whose consumers add the partial sums (by prologue fusion), values that are several outputs stored
several times to save copies, and independent kernels moved next to each other.
"""
