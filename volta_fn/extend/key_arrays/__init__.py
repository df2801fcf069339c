"""Functions that move elements, given arrays of random keys.

`numpy` has those of `jax.numpy`, `lax` those of `jax.lax`. The words of keys lie along a last dimension of the data, and move alike: so
such a function is mapped over them.
"""
