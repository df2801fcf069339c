"""The process, its platforms and devices, by JAX's names."""

from volta_fn.compat.process import *
