"""Tracing to jaxprs, by the names of `jax.interpreters.partial_eval`."""

from volta_fn.extend.interpreters import DynamicJaxprTracer as DynamicJaxprTracer
from volta_fn.extend.interpreters import JaxprTracer as JaxprTracer
from volta_fn.extend.interpreters import PartialVal as PartialVal
from volta_fn.extend.interpreters import custom_partial_eval_rules as custom_partial_eval_rules
from volta_fn.extend.interpreters import dce_jaxpr as dce_jaxpr
from volta_fn.extend.interpreters import dce_rules as dce_rules
from volta_fn.extend.interpreters import partial_eval_jaxpr_custom_rules as partial_eval_jaxpr_custom_rules
from volta_fn.extend.interpreters import trace_to_jaxpr_dynamic as trace_to_jaxpr_dynamic
from volta_fn.extend.interpreters import trace_to_jaxpr_nounits as trace_to_jaxpr_nounits
