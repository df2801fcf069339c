"""Elementwise primitives; `formulas` has what they compute, `declare` their rules.

`arithmetic`, `comparison`, `exponential`, `trigonometric`, `special`, `gamma_quotients`, `incomplete` (gamma and beta functions),
`power_transforms`, `complex_components`, `cast` (with `full_width`) and `selection`; `accuracy` has the values of an option.
"""
