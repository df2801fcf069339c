"""Function transformations: differentiation, vectorization, custom rules.

Importing this package registers the rules of calls and control flow, so every transform imports it first. In the order in which to read:

- `linearize` (forward mode, linear programs of tangents, and their transposes) and `grad`, the public functions of forward and reverse
  mode; `gradient_refs`: gradients accumulated in references; `jacobian`: Jacobians and Hessians;
- `eager`: gradients outside of `jit`, by compiled programs;
- `vmap` (with `map`, a function of rows in batches); `make_jaxpr`: functions as programs, and a function of reduced precision;
- `rules`: those of primitives that call sub-programs;
- functions with rules of their own: `custom_call` (what they share), `custom_derivatives`, `custom_batching`, and `implicit` (solvers and
  linear functions);
- `checkpoint`, which computes again in the backward pass.
"""

from volta_fn.transforms import rules as _rules  # noqa: F401  # registers the rules of jit, attention, scan, while and cond
