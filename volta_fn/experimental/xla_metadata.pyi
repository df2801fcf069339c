"""Attributes of operations for XLA, which have no effect."""

from volta_fn.compat.refused import set_xla_metadata as set_xla_metadata
