"""The CPU by NumPy: always available, and the definition of every primitive's semantics.

`backend` is the interface to the driver, `program` runs a plan as a Python function, and `kernels` names the functions that evaluate
primitives where these do not stand at the declaration: `contraction`; `convolution`, which brings all to one canonical `conv_correlate`,
computed by `conv_tiling` and `conv_patches`, `conv_by_shifts`, `conv_batch_last` or `conv_by_fft`; `windows` by `sliding`; `indexing`,
`sorting`, `cumulative`, `reductions`, `linalg`, `fourier`, `random_bits` and `control_flow`. `blocks` allocates memory, `errstate` silences
NumPy's warnings.
"""
