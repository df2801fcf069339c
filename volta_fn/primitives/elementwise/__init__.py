"""Elementwise primitives; `formulas` has what they compute, `declare` their rules.

`arithmetic`, `comparison`, `exponential`, `trigonometric`, `special`, `complex_components`, `cast` (with `full_width`) and `selection`;
`accuracy` has the values of an option.
"""
