"""`jit` and eager evaluation: trace, compile, cache and run programs.

- `eager` evaluates single primitives, for code that is not jitted.
- `arguments` separates static, donated and dynamic arguments.
- `compile` traces and compiles; `lowered` lets users inspect a traced program, `texts` print its code, and `cost` estimates what it takes,
  `device_plan` what it needs of a GPU.
- `cache` keeps the programs of a function, and finds the one for a call; `recompilation` warns of many.
- `function` is `jit` itself; `refs` calls functions that use mutable references.
- `placement` calls programs with arrays that are split between devices.
- `memory_limit` has programs notice a limit.
- `interpret` runs programs equation by equation for `debug_nans`, and `nonfinite` words its errors.
- `saved_residuals` tells what a backward pass keeps.
- `fused` makes functions of the package one program each when they are called eagerly again and again; `views` makes
  views again that such functions return.
"""

from volta_fn.jit.function import jit as jit
