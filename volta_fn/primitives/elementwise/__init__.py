"""Elementwise primitives.

`arithmetic` has arithmetic, exponentials, logarithms, roots and trigonometric functions, `selection` comparison, choice and complex
components, `special` special functions, and `cast` changes of dtypes. `primitives.formulas` has what they compute, and `primitives.declare`
derives their rules.
"""
