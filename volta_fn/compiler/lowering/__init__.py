"""Lower equations to kernels.

In the order in which to read: `equations` (the kernel of a loop over equations), `signature` (equal loops are lowered once), and `nodes`
(what all targets need after fusion).
"""
