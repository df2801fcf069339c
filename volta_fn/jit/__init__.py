"""The driver: `jit` traces functions, compiles the jaxprs, caches the compiled programs and runs them.

- `eager` evaluates single primitives, for code that is not jitted.
- `arguments` tells static, donated and dynamic arguments apart.
- `programs` traces and compiles; `lowered` makes a traced program inspectable.
- `cache` keeps the programs of a function, and finds the one for a call.
- `function` is `jit` itself.
"""

from volta_fn.jit.function import jit as jit
