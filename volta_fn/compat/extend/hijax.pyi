"""Types and primitives by the names of `jax.experimental.hijax`."""

from volta_fn.compat.extend.interpreters import instantiate_zeros as instantiate_zeros
from volta_fn.compat.extend.interpreters import is_undefined_primal as is_undefined_primal
from volta_fn.compat.extend.unsupported import AbstractValue as AbstractValue
from volta_fn.compat.extend.unsupported import AvalMutableQDD as AvalMutableQDD
from volta_fn.compat.extend.unsupported import AvalQDD as AvalQDD
from volta_fn.compat.extend.unsupported import HiPrimitive as HiPrimitive
from volta_fn.compat.extend.unsupported import HiType as HiType
from volta_fn.compat.extend.unsupported import MutableHiType as MutableHiType
from volta_fn.compat.extend.unsupported import Zero as Zero
from volta_fn.compat.extend.unsupported import aval_method as aval_method
from volta_fn.compat.extend.unsupported import aval_property as aval_property
from volta_fn.compat.extend.unsupported import control_flow_allowed_effects as control_flow_allowed_effects
from volta_fn.compat.extend.unsupported import register_hitype as register_hitype
