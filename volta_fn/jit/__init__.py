"""`jit` and eager evaluation: trace, compile, cache and run programs.

In the order in which to read:

- `function` is `jit` itself, with calls that use mutable references.
- `cache` separates static, donated and dynamic arguments, keeps the programs of a function, finds the one for a call, and warns of many.
- `compile` traces a function to a program, estimates its cost, and compiles it as a function of arrays. `sharded` calls programs with
  arrays that are split between devices.
- `stages` shows users a function as it is traced, lowered and compiled, with its code, and what it needs of a GPU.
- `eager` evaluates single primitives, for code that is not jitted. `fused` makes a function of the package one program when it is called
  eagerly again and again.
- `interpret` runs a program equation by equation for `debug_nans`.
"""

from volta_fn.jit.function import jit as jit
