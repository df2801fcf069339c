"""The small libraries of JAX's examples: `stax` (layers) and `optimizers`."""

from volta_fn.compat.example_libraries import optimizers as optimizers
from volta_fn.compat.example_libraries import stax as stax
