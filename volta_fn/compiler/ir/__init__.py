"""Define kernels and programs of kernel calls: what targets generate code from.

A kernel is a loop nest over scalar operations. In the order in which to read: `index` (affine indices), `kernel` (the kernel IR), `check`
(well-formedness), `printing`, `interpret` (its semantics, in NumPy), `views` (equations that only change indices), `nodes` (kernel calls
in programs, producers and consumers), and what code generators ask of a kernel: `axes` (a kernel in fewer axes), `analysis` (offsets,
dependences, inputs that an output may overwrite), `contraction` (kernels that are matrix products), and `window` (kernels split for large
arrays). `attention` and `wrapped_indices` define primitives that passes introduce.
"""
