"""Primitives that users define, with rules in JAX's form."""

from volta_fn.extend.core import LoweringContext as LoweringContext
from volta_fn.extend.core import Primitive as Primitive
from volta_fn.extend.core import Rule as Rule
from volta_fn.extend.core import Rules as Rules
from volta_fn.extend.core import no_rule as no_rule
