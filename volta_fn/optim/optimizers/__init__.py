"""Optimizers under their usual names: chains of transformations.

`first_order` has gradient descent and its variants, the Adam family, and those that divide by roots of second moments. `matrix_methods` has
L-BFGS, and Muon for matrices.
"""
