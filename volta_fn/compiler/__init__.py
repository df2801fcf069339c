"""Jaxpr → program: simplification, fusion and scheduling, independent of any backend.

`passes` simplify a jaxpr, `fission` takes products out of its loops, and `kernels` fuses equations into loops. There are two results:

- a `plan`, the equations in order with the lifetimes of buffers (`lifetimes`, `memory`), which NumPy runs;
- a body (`bodies`), kernels and equations with the code that a *lane* (a code generator for whole programs: `native`, `wgsl`) has for
  each. `attention` is recognised for it, Fourier transforms are written as products where the lane has nothing better (`fourier`), and
  products are split along their sums (`adding`) or deferred (`deferral`). `writing` has a lane generate the program, with its values in
  `slots`; `outputs` says what the results are.

`contractions` describes matrix products and convolutions for all backends; `keys` compares parameters.
"""
