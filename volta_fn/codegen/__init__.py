"""Generate code: what the code generators of all targets share.

A target implements printers, over which shared code is written once: `index_arith` has index arithmetic with constant folding;
`sort_keys` has integers in the order of numbers; `geometry` says where elements are (strides, windows, index vectors); `loops` has what
loops over kernels share: passes, the emission of values, reductions.

Formulas of scalar operations are in `volta_fn.primitives.formulas`.
"""
