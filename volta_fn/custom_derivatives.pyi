"""Derivative rules by the user, with JAX's names."""

from volta_fn.core.primitive import Zero as Zero
from volta_fn.transforms.custom_derivatives import CustomVJPPrimal as CustomVJPPrimal
from volta_fn.transforms.custom_derivatives import closure_convert as closure_convert
from volta_fn.transforms.custom_derivatives import custom_gradient as custom_gradient
from volta_fn.transforms.custom_derivatives import custom_jvp as custom_jvp
from volta_fn.transforms.custom_derivatives import custom_vjp as custom_vjp
from volta_fn.transforms.custom_derivatives import zero_from_primal as zero_from_primal
from volta_fn.transforms.implicit import linear_call as linear_call

SymbolicZero = Zero
