"""The rules of primitives that call sub-programs, for every transform.

Importing this package registers them. The programs that they derive are cached on the original programs. In the order in which to read:

- `calls`: how rules split, reorder and compose programs, what a call saves for its derivative, and the rules of calls that compilers
  inline or have routines for: those of `jit` and attention;
- `control_flow`: the rules of `scan`, `while_loop` and `cond`.
"""

from volta_fn.transforms.rules import calls, control_flow  # noqa: F401  # these register the rules
