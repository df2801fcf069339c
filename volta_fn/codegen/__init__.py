"""Generate code: the shared parts of all targets' code generators.

A target implements printers, over which shared code is written once: `indices` has index arithmetic with constant folding, strides, windows
and index vectors, sort keys (integers in the order of numbers) and how cumulative operations combine elements; `loops` has what loops over
kernels share: passes, the emission of values, reductions.

Formulas of scalar operations are in `volta_fn.primitives.formulas`.
"""
