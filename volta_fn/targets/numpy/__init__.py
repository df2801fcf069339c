"""The CPU by NumPy: always available, and the semantics of every primitive.

`backend` is the interface to `jit`, `program` runs a plan as a Python function, and `kernels` names the functions that evaluate primitives
where these are not written at the declaration: `contraction`; `convolution`, as correlations computed by `conv_im2col` with `conv_tiling`,
or `conv_by_fft`; `windows` over `sliding`; `indexing`, `sorting`, `reductions`, `linalg` and `lapack`, `fourier`,
`random_bits` and `control_flow`. `blocks` allocates memory, and `workspace` says what routines need for themselves.
"""
