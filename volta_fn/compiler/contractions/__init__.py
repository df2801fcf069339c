"""Contractions, as all targets describe them.

`matmul_problem` expresses `dot_general` as a stack of matrix products over index maps; `correlation` expresses every convolution, and both
of its gradients, as correlations in one canonical form, over `sliding_windows`; `index_maps` expresses both as contractions over index
maps; `winograd_points` has Winograd's transforms.
"""
