"""Events that libraries record, and listeners to them: `jax.monitoring`."""

from volta_fn.compat.monitoring import *
