"""Functions that move elements, given arrays of random keys.

`numpy` has those of `jax.numpy`, `lax` those of `jax.lax`. The words of a key lie along a last dimension of the data, and all move alike:
`words` maps such a function over them.
"""
