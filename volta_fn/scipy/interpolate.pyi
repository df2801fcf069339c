"""Interpolation with the names of `jax.scipy.interpolate`."""

from volta_fn.scipy.interpolation import RegularGridInterpolator as RegularGridInterpolator
