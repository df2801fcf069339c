"""How distributions are declared: `continuous` and `discrete` ones, by formulas.

`signatures` makes public functions of formulas, and `logarithms` has those that many distributions share.
"""
