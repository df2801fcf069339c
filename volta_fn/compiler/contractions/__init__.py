"""Contractions, as all backends see them.

`problem` has `dot_general` as a stack of matrix products over index maps, `geometry` has every convolution, and both of its gradients, as
correlations in one canonical form, `maps` has both of these as contractions over index maps, and `points` has Winograd's transforms.
"""
