"""Settings by JAX's names: `config.update`, `enable_x64`, `disable_jit`, …."""

from volta_fn.compat.config import *
