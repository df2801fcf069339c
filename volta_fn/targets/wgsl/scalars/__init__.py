"""Scalars in shaders: the arithmetic of kernels and library routines.

In the order in which to read: `number` (dtypes in shaders, and functions for what devices do not compute accurately), `values` (values
with operators), `pairs` (the same for sums of two floats, which stand for float64), and `operations` (every elementwise primitive by name,
for floats mostly by `primitives.formulas`, and conversions).
"""

from volta_fn.targets.wgsl.scalars.number import Number as Number
from volta_fn.targets.wgsl.scalars.number import constant as constant
from volta_fn.targets.wgsl.scalars.number import is_supported as is_supported
from volta_fn.targets.wgsl.scalars.number import wgsl_type as wgsl_type
from volta_fn.targets.wgsl.scalars.operations import apply as apply
from volta_fn.targets.wgsl.scalars.operations import combine as combine
from volta_fn.targets.wgsl.scalars.operations import combine_indexed as combine_indexed
from volta_fn.targets.wgsl.scalars.operations import convert as convert
from volta_fn.targets.wgsl.scalars.operations import opaque_float as opaque_float
from volta_fn.targets.wgsl.scalars.operations import supports as supports
