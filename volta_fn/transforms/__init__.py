"""Function → function: differentiation, vectorization, and what steers them.

Whatever needs a transform loads this first, so calls and control flow have their rules before any trace asks for them.
"""

from volta_fn.transforms import call_rules as _call_rules  # noqa: F401  # completes the primitive of jit
from volta_fn.transforms import cond_rules as _cond_rules  # noqa: F401  # completes cond
from volta_fn.transforms import scan_rules as _scan_rules  # noqa: F401  # completes scan
from volta_fn.transforms import while_rules as _while_rules  # noqa: F401  # completes while
