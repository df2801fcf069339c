"""Elementwise primitives; `formulas` has what they compute, `declare` their rules.

`arithmetic` (with exponentials, logarithms, roots and trigonometric functions), `selection` (comparison, choice, complex components),
`special` and `cast`.
"""
