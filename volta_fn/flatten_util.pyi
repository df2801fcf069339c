"""A pytree of arrays as one vector, as in `jax.flatten_util`."""

from volta_fn.numpy.joining import ravel_pytree as ravel_pytree
