"""Lower equations to kernels.

`equations` makes the kernel of a loop over equations; `nodes` has what all targets need after fusion.
"""
