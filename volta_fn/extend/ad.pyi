"""Derivative rules of primitives, by the names of `jax.interpreters.ad`."""

from volta_fn.extend.interpreters import JVPTrace as JVPTrace
from volta_fn.extend.interpreters import JVPTracer as JVPTracer
from volta_fn.extend.interpreters import UndefinedPrimal as UndefinedPrimal
from volta_fn.extend.interpreters import add_jaxvals as add_jaxvals
from volta_fn.extend.interpreters import add_jaxvals_p as add_jaxvals_p
from volta_fn.extend.interpreters import add_tangents as add_tangents
from volta_fn.extend.interpreters import defbilinear as defbilinear
from volta_fn.extend.interpreters import defjvp as defjvp
from volta_fn.extend.interpreters import defjvp2 as defjvp2
from volta_fn.extend.interpreters import deflinear as deflinear
from volta_fn.extend.interpreters import deflinear2 as deflinear2
from volta_fn.extend.interpreters import get_primitive_transpose as get_primitive_transpose
from volta_fn.extend.interpreters import instantiate_zeros as instantiate_zeros
from volta_fn.extend.interpreters import is_undefined_primal as is_undefined_primal
from volta_fn.extend.interpreters import primal_tangent_dtype as primal_tangent_dtype
from volta_fn.extend.interpreters import primitive_jvps as primitive_jvps
from volta_fn.extend.interpreters import primitive_transposes as primitive_transposes
from volta_fn.extend.interpreters import zeros_like_aval as zeros_like_aval
