"""Function transformations: differentiation, vectorization, custom rules.

Importing this package registers the rules of calls and control flow, so every transform imports it first. In the order in which to read:

- `differentiation`: forward mode, linear programs of tangents, and their transposes; `grad`: the public functions of forward and reverse
  mode, with gradients accumulated in references; `jacobian`: Jacobians and Hessians;
- `eager`: gradients outside of `jit`, by compiled programs;
- `vmap` (with `map`, a function of rows in batches);
- the rules of primitives that call sub-programs, whose programs are cached on the original ones: `call_rules` (how rules split, reorder and
  compose programs, what a call saves for its derivative, and the rules of `jit` and attention, which compilers inline or have routines for)
  and `control_flow_rules` (`scan`, `while_loop` and `cond`);
- functions with rules of their own: `custom_call` (what they share, and `custom_vmap`), `custom_derivatives`, and `implicit` (solvers,
  linear functions, and rounding to fewer bits, which is made of these);
- `checkpoint`: recomputation in the backward pass.

Names that differ from JAX's: `Linear` is JAX's UndefinedPrimal, `Zero` its symbolic zero; `PartialEvalTrace` and `UnknownTracer` are its
JaxprTrace and JaxprTracer; `merge` is merge_lists, and `marked` returns one of the lists of partition_list.
"""

from volta_fn.transforms import call_rules as _call_rules  # noqa: F401  # registers the rules of jit and of attention
from volta_fn.transforms import control_flow_rules as _control_flow_rules  # noqa: F401  # registers those of scan, while and cond
