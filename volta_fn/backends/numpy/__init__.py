"""The CPU by NumPy: always there, and the meaning of every primitive.

`backend` is what the driver sees, `program` a plan as a Python function, `kernels` which function evaluates which primitive, where that
does not stand at its declaration: `contraction`; `convolution`, which brings all to one canonical `correlation`, done by `tiling` and
`patches`, `shifting`, `images_last` or `spectral`; `windows` by `sliding`; `indexing`, `sorting`, `cumulative`, `reductions`, `linalg`,
`random_bits` and `control_flow`. `blocks` is memory, `quiet` has NumPy warn of nothing.
"""
