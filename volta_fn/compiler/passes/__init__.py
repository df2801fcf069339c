"""Passes from jaxpr to jaxpr.

Simplification gives the same values to the last bit; expansions and loop fission may round differently. In the order in which to read:
`rewriting` (one walk over a program, by rules for single equations) and `simplify` (the rules: constant folding, arithmetic, movement,
selection, merging of equal equations), `updates` (selections between an array and its update), `dce` (which equations may be dropped or
moved, and sums between processes that start early), `loops` (known branches, carries that no iteration changes, invariant code, and matrix
products that move out of scans), `expansions` (Fourier transforms, random bits, one-hot indexing, outer products, negative indices, layouts
of convolutions' operands; and the primitives that only passes introduce), `attention`, which recognises attention, and `wide_rows`
(softmaxes of large products by chunks of rows).
Before all of these, `shards` makes of a program for several devices that of each.
"""
