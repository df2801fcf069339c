"""The CPU by NumPy: always available, and the semantics of every primitive.

In the order in which to read: `backend` is the interface to `jit`, runs control flow, and names the functions that evaluate primitives
where the declaration has none, and runs a plan as a Python function. `memory` keeps the blocks that values lie in. The functions:
`convolution` (as correlations, by im2col or by Fourier transforms), `indexing` (also random bits), `reductions` (also windows and sorting),
and `linalg` (contractions, Fourier transforms, factorisations).
"""
