"""Attributes of operations for XLA, which have no effect."""

from volta_fn.compat.refused import fuse_limit as fuse_limit
from volta_fn.compat.refused import must_fuse_call as must_fuse_call
from volta_fn.compat.refused import set_xla_metadata as set_xla_metadata
from volta_fn.compat.refused import xla_metadata_call as xla_metadata_call
from volta_fn.compat.refused import xla_metadata_call2 as xla_metadata_call2
