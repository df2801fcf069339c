"""Functions with rules by the user.

`custom_call` has what all of them share (arguments, tracing, checks), and `custom_vmap`, for rules of batching. `custom_derivatives` has
`custom_jvp`, `custom_vjp` and `custom_gradient`, and `implicit` the derivatives of solvers and linear functions.
"""
