"""Contractions, as all targets describe them.

`matmul_problem` expresses `dot_general` as a stack of matrix products over index maps, `correlation` every convolution, and both of its
gradients, as correlations in one canonical form, `index_maps` both of these as contractions over index maps, and `winograd_points` has
Winograd's transforms.
"""
