"""Passes: rewriting programs into simpler ones that give the same values, to the last bit.

In the order in which to read: `driver` (all passes in order), `inline`, `algebra` (rules for single equations, applied in one walk of
`rewriting`: `constant_folding`, `arithmetic`, `select_rules`, `broadcasts`, `movement_rules`, `contraction_rules`, `cse`), `dce`, `effects`
(which equations a pass may move or drop), and passes for control flow: `nested`, `cond_simplify`, `loop_variance`, `licm`.
`fourier` writes Fourier transforms as products, and `loop_fission` moves matrix products out of scans.
"""
