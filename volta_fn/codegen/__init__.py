"""Generate code: what the code generators of all targets share.

`scalars` has the formulas of scalar operations, written once over values that each target prints; `geometry` has index arithmetic.
"""
