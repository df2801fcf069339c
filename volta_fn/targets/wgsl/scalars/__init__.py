"""Scalars in shaders: what kernels and library routines compute with.

In the order in which to read: `shader` (a compute shader under construction), `number` (dtypes in shaders), `memory` (storage buffers as
arrays, and `halves`, the bits of float16 and bfloat16), `values` (values with operators, with `helpers` for what devices do not compute
accurately), `integers`, `floats`, `convert` (one family of operations each; most of those of floats are
in `primitives.formulas.floats`), `operations` (all of them by name).
"""

from volta_fn.targets.wgsl.scalars.number import Number as Number
from volta_fn.targets.wgsl.scalars.number import constant as constant
from volta_fn.targets.wgsl.scalars.number import is_supported as is_supported
from volta_fn.targets.wgsl.scalars.number import wgsl_type as wgsl_type
from volta_fn.targets.wgsl.scalars.operations import apply as apply
from volta_fn.targets.wgsl.scalars.operations import combine as combine
from volta_fn.targets.wgsl.scalars.operations import combine_indexed as combine_indexed
from volta_fn.targets.wgsl.scalars.operations import convert as convert
from volta_fn.targets.wgsl.scalars.operations import supports as supports
from volta_fn.targets.wgsl.scalars.operations import unknown_float as unknown_float
from volta_fn.targets.wgsl.scalars.shader import Array as Array
from volta_fn.targets.wgsl.scalars.shader import OtherAccess as OtherAccess
from volta_fn.targets.wgsl.scalars.shader import Shader as Shader
