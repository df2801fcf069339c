"""Programs on NVIDIA GPUs: WGSL's, and products of matrices on matrix units.

In the order in which to read: `kernel` (kernels that are no WGSL), `matmul`, and `target`.
"""
