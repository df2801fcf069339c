"""Flattening of wrapped functions, by the names of `jax.api_util`."""

from volta_fn.extend.functions import DebugInfo as DebugInfo
from volta_fn.extend.functions import argnums_partial as argnums_partial
from volta_fn.extend.functions import debug_info as debug_info
from volta_fn.extend.functions import donation_vector as donation_vector
from volta_fn.extend.functions import flatten_axes as flatten_axes
from volta_fn.extend.functions import flatten_fun as flatten_fun
from volta_fn.extend.functions import flatten_fun_nokwargs as flatten_fun_nokwargs
from volta_fn.extend.functions import infer_argnums_and_argnames as infer_argnums_and_argnames
from volta_fn.extend.functions import rebase_donate_argnums as rebase_donate_argnums
from volta_fn.extend.functions import safe_map as safe_map
from volta_fn.extend.functions import safe_zip as safe_zip
from volta_fn.extend.functions import shaped_abstractify as shaped_abstractify
