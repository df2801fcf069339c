"""Passes from jaxpr to jaxpr.

Simplification gives the same values to the last bit; expansions and loop fission may round differently. In the order in which to read:
`inline`, `simplify` (rules for single equations, applied in one walk of `rewriting`: constant folding, `arithmetic`, `select_rules`,
`movement_rules`, and merging of equal equations), `dce`, `effects` (which equations a pass may move or drop), and passes for control
flow: `nested`, `loop_variance`, `licm`. `loop_fission` moves matrix products out of scans. Expansions: `fourier` (transforms as matrix
products), `random_bits`, `onehot_indexing`, `outer_products`. `wrapped_indices` lets gathers read negative
indices. `attention` recognises attention, `overlap` starts sums between processes
early.
"""
