"""Passes: programs rewritten into simpler ones that give the same values, to the last bit.

In the order in which to read: `driver` (all of them, in a good order), `inline`, `algebra` (the rules about single equations, in one walk
of `rewriting`: `folding`, `arithmetic`, `choosing`, `broadcasts`, `layout`, `contractions`, `cse`), `dce`, `effects` (what a pass may do
with an equation), and those of control flow: `bodies`, `branches`, `loops`, `motion`.
"""
