"""Function → function: differentiation, vectorization, and what controls them.

Importing this package registers the rules of calls and control flow, so every transform imports it first.

In the order in which to read: forward mode (`jvp`), `linearize` and `transpose`, of which reverse mode is composed (`grad`, `jacobian`);
`eager` (gradients outside of `jit`, by compiled programs); `vmap` and `vectorize`; inspecting functions (`program`). Sub-programs have
rules of their own: `subprograms`, `call_rules`, `cond_rules`, `scan_rules`, `while_rules`. For users to control derivatives and batching:
`checkpoint`, `custom_call`, `custom_jvp`, `custom_vjp`, `closures`, `sequential`.
"""

from volta_fn.transforms import call_rules as _call_rules  # noqa: F401  # completes the primitive of jit
from volta_fn.transforms import cond_rules as _cond_rules  # noqa: F401  # completes cond
from volta_fn.transforms import scan_rules as _scan_rules  # noqa: F401  # completes scan
from volta_fn.transforms import while_rules as _while_rules  # noqa: F401  # completes while
