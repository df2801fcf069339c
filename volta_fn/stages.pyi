"""The stages of a jitted function, with the names of `jax.stages`."""

from volta_fn.jit.lowered import ArgInfo as ArgInfo
from volta_fn.jit.lowered import Compiled as Compiled
from volta_fn.jit.lowered import Lowered as Lowered
from volta_fn.jit.lowered import Traced as Traced
from volta_fn.jit.lowered import Wrapped as Wrapped
