"""Function transformations: differentiation, vectorization, custom rules.

Importing this package registers the rules of calls and control flow, so every transform imports it first. Read in this order:

- forward mode (`jvp`), `linearize` and `transpose`, which together make reverse mode (`grad`, `gradient_refs`, `jacobian`);
  `forward` has the public functions of forward mode;
- `eager`: gradients outside of `jit`, by compiled programs;
- `vmap`, and `map` (a function in batches); `make_jaxpr`: functions as programs;
- the rules of sub-programs: `call_rules`, `attention_rules`, `cond_rules`, `scan_rules`, `while_rules`, with `subprograms` and `marks`;
- what users control derivatives with: `checkpoint`, `custom_call`, `custom_jvp`, `custom_vjp`, `closures`,
  `linear_call`, `custom_vmap`, and `implicit` (solvers);
- a function with a derivative of its own: `reduced_precision`.
"""

from volta_fn.transforms import attention_rules as _attention_rules  # noqa: F401  # completes the primitives of attention
from volta_fn.transforms import call_rules as _call_rules  # noqa: F401  # completes the primitive of jit
from volta_fn.transforms import cond_rules as _cond_rules  # noqa: F401  # completes cond
from volta_fn.transforms import scan_rules as _scan_rules  # noqa: F401  # completes scan
from volta_fn.transforms import while_rules as _while_rules  # noqa: F401  # completes while
