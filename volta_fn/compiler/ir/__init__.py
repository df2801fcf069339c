"""Define kernels: loop nests over scalar operations, the form in which code generators receive programs.

In the order in which to read: `index` (affine indices), `kernel` (the kernel IR), `check` (well-formedness), `printing`, `interpret` (its
semantics, in NumPy), `views` (equations that only change indices), and what code generators ask of a kernel: `axes` (a kernel in fewer
axes), `analysis` (offsets and dependences), `contraction` (kernels that are matrix products), `overwrite` (inputs whose memory an output
may reuse), `window` (kernels split for large arrays), and `signature` (equal kernels).
"""
