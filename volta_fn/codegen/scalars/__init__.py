"""Operations on scalars that all code generators share.

In the order in which to read: `values` (the operations of a target's values), `floats` and `complex_numbers` (elementwise operations on
them), `functions` (exp, sin, …), `threefry`.
"""
