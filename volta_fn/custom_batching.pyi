"""Batching rules by the user, with JAX's names."""

from volta_fn.transforms.custom_call import custom_vmap as custom_vmap
from volta_fn.transforms.custom_call import sequential_vmap as sequential_vmap
