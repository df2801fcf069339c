"""Lowering rules of primitives, by the names of `jax.interpreters.mlir` and `xla`."""

from volta_fn.extend.core import LoweringContext as LoweringContext
from volta_fn.extend.interpreters import LoweringRule as LoweringRule
from volta_fn.extend.interpreters import LoweringRuleContext as LoweringRuleContext
from volta_fn.extend.interpreters import apply_primitive as apply_primitive
from volta_fn.extend.interpreters import canonicalize_dtype_handlers as canonicalize_dtype_handlers
from volta_fn.extend.interpreters import emit_python_callback as emit_python_callback
from volta_fn.extend.interpreters import global_result_handlers as global_result_handlers
from volta_fn.extend.interpreters import ir_type_handlers as ir_type_handlers
from volta_fn.extend.interpreters import lower_fun as lower_fun
from volta_fn.extend.interpreters import pytype_aval_mappings as pytype_aval_mappings
from volta_fn.extend.interpreters import register_lowering as register_lowering
