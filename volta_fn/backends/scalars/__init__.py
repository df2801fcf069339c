"""What the lanes that generate code share about scalars: formulas over values with operators, whichever code these write."""
