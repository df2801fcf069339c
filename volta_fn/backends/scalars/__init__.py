"""What the lanes that generate code share about scalars: formulas over values with operators, whichever code these write.

In the order in which to read: `values` (what a lane's values can do), `floats` and `complex_numbers` (what the elementwise operations are
for them), `functions` (exp, sin, …), `reductions`, `threefry`.
"""
