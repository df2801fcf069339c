"""Function transformations: differentiation, vectorization, custom rules.

Importing this package registers the rules of calls and control flow, so every transform imports it first. Read in this order:

- forward mode (`jvp`), `linearize` and `transpose`, which together make reverse mode (`grad`, `gradient_refs`, `jacobian`);
  `forward` has the public functions of forward mode;
- `eager`: gradients outside of `jit`, by compiled programs;
- `vmap`, and `map` (a function in batches); `make_jaxpr`: functions as programs;
- `rules`: those of primitives that call sub-programs, with `marks` (lists that mark values) and `residuals` (what
  calls save for their derivatives);
- what users control derivatives with: `custom` (functions with rules of their own) and `checkpoint`;
- a function with a derivative of its own: `reduced_precision`.
"""

from volta_fn.transforms import rules as _attention_rules  # noqa: F401  # completes the primitives of attention
from volta_fn.transforms import rules as _call_rules  # noqa: F401  # completes the primitive of jit
from volta_fn.transforms import rules as _cond_rules  # noqa: F401  # completes cond
from volta_fn.transforms import rules as _scan_rules  # noqa: F401  # completes scan
from volta_fn.transforms import rules as _while_rules  # noqa: F401  # completes while
