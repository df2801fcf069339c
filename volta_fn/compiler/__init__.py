"""Jaxpr → plan: simplification and scheduling, knowing no backend.

`passes` simplify a program, and `fission` takes products out of its loops; `kernels` makes fused loops of it. Two forms come out:

- a `plan`, equation by equation with buffer lifetimes solved (`lifetimes`, `memory`), which NumPy runs;
- a body (`bodies`), kernels and equations with what a *lane* (a code generator for whole programs: `native`, `wgsl`) makes of each, for
  which `attention` is recognised, products are split along their sums (`adding`) or deferred (`deferral`); `writing` has a lane write it,
  each value in one of the `slots`, and `outputs` says what the results are.

`contractions` is what all backends know of products and convolutions; `keys` tells equal parameters.
"""
