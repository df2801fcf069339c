"""Contractions, as all backends describe them.

`problem` expresses `dot_general` as a stack of matrix products over index maps, `geometry` every convolution, and both of its gradients, as
correlations in one canonical form, `maps` both of these as contractions over index maps, and `points` has Winograd's transforms.
"""
