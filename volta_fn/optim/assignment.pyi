"""Assignments of least cost, as in `optax.assignment`."""

from volta_fn.optim.projections import base_hungarian_algorithm as base_hungarian_algorithm
from volta_fn.optim.projections import hungarian_algorithm as hungarian_algorithm
