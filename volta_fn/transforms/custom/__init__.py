"""Functions with rules by the user.

`custom_call` is what all of them share: arguments, tracing, checks. `custom_jvp`, `custom_vjp` and `custom_vmap` replace one rule each;
`linear_call` has a transpose of its own, `implicit` differentiates solvers, `closures` makes arguments of values in closures.
"""
