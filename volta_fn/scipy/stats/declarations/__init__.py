"""How distributions are declared: `continuous` and `discrete` ones, by formulas.

`signatures` makes public functions of formulas, `logarithms` has those that many distributions share, and `tails` those of small
probabilities.
"""
