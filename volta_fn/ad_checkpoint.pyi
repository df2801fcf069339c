"""Recomputation in the backward pass, with JAX's names."""

from volta_fn.inspection.explain import print_saved_residuals as print_saved_residuals
from volta_fn.inspection.explain import saved_residuals as saved_residuals
from volta_fn.transforms.checkpoint import checkpoint as checkpoint
from volta_fn.transforms.checkpoint import checkpoint_name as checkpoint_name
from volta_fn.transforms.checkpoint import checkpoint_policies as checkpoint_policies
from volta_fn.transforms.checkpoint import remat as remat
