"""What the code generators share about scalars: formulas over values with operators, whichever code those emit.

In the order in which to read: `values` (the operations of a lane's values), `floats` and `complex_numbers` (elementwise operations on
them), `functions` (exp, sin, …), `threefry`.
"""
