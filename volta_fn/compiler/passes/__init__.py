"""Passes: rewriting programs into simpler ones that give the same values, to the last bit.

In the order in which to read: `driver` (all passes in order), `inline`, `algebra` (rules for single equations, applied in one walk of
`rewriting`: `folding`, `arithmetic`, `choosing`, `broadcasts`, `layout`, `contractions`, `cse`), `dce`, `effects` (which equations a pass
may move or drop), and passes for control flow: `bodies`, `branches`, `loops`, `motion`.
"""
