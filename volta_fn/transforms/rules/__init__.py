"""The rules of primitives that call sub-programs, for every transform.

Importing this package registers them. The programs that they derive are cached on the original programs. In the order in which to read:

- `programs`: how rules split, reorder and compose programs; `residuals`: what a call saves for its derivative; `calls`: the rules that
  calls share;
- `jit` and `attention`, calls that compilers inline or have routines for;
- `scan`, `while_loop` and `cond`: control flow.
"""

from volta_fn.transforms.rules import attention, cond, jit, scan, while_loop  # noqa: F401  # these register the rules
