"""Fuse equations into kernels.

In the order in which to read: `groups` (kernels under construction, when two of them fit in one loop, and which values are computed again
rather than stored), `fuse` (which groups are merged, and the kernels that result), and `node_passes`, passes after fusion: reshapes share
memory; and, where a target wants that, long sums of matrix products are split into chunks, kernels move next to independent ones, and a
value that is several outputs is stored once for each.
"""
