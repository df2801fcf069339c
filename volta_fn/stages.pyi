"""The stages of a jitted function, with the names of `jax.stages`."""

from volta_fn.jit.stages import ArgInfo as ArgInfo
from volta_fn.jit.stages import Compiled as Compiled
from volta_fn.jit.stages import Lowered as Lowered
from volta_fn.jit.stages import Traced as Traced
from volta_fn.jit.stages import Wrapped as Wrapped
