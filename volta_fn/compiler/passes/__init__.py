"""Passes from jaxpr to jaxpr.

Simplification gives the same values to the last bit; expansions and loop fission may round differently. In the order in which to read:
`simplify` (rules for single equations, applied in one walk: constant folding, arithmetic, movement, selection, merging of equal equations),
`dce` (which equations may be moved or dropped, and sums between processes that start early), `loops` (inlined calls, known branches,
carries that no iteration changes, invariant code), `loop_fission` (matrix products move out of scans), `expansions` (Fourier transforms,
random bits, one-hot indexing, outer products, negative indices) and `attention`, which recognises attention.
"""
