"""Differentiable approximations of functions, by random perturbations, as in `optax.perturbations`."""

from volta_fn.optim.projections import Gumbel as Gumbel
from volta_fn.optim.projections import Normal as Normal
from volta_fn.optim.projections import make_perturbed_fun as make_perturbed_fun
