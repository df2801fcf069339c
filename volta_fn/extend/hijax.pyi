"""Types and primitives by the names of `jax.experimental.hijax`."""

from volta_fn.compat.refused import AvalMutableQDD as AvalMutableQDD
from volta_fn.compat.refused import AvalQDD as AvalQDD
from volta_fn.compat.refused import HiPrimitive as HiPrimitive
from volta_fn.compat.refused import HiType as HiType
from volta_fn.compat.refused import MutableHiType as MutableHiType
from volta_fn.compat.refused import aval_method as aval_method
from volta_fn.compat.refused import aval_property as aval_property
from volta_fn.compat.refused import control_flow_allowed_effects as control_flow_allowed_effects
from volta_fn.compat.refused import register_hitype as register_hitype
from volta_fn.core import aval
from volta_fn.core.primitive import Zero as Zero
from volta_fn.extend.interpreters import instantiate_zeros as instantiate_zeros
from volta_fn.extend.interpreters import is_undefined_primal as is_undefined_primal

AbstractValue = aval.ShapedArray
