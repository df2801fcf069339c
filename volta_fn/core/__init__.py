"""The foundation: avals, arrays, devices, primitives, traces, jaxprs.

In the order in which to read: `interned` (values by key), `aval` (abstract values: shapes and dtypes), `dimension` (symbolic sizes),
`process` (its rank among others), `device`, `array`, `memory` (who owns that of arrays), `dispatch` (what to run for arrays of some
types), `primitive` (operations and their rules), `trace` (interpreters of operations: the current one evaluates, differentiates, batches
or records them), `jaxpr` (programs as data), `staging` (functions traced to jaxprs), `nesting` (how deep), `refs` (mutable references),
`flatten` (functions of pytrees as functions of lists), `jitted` (what transforms know of jitted functions), `promotion` (of dtypes, as
the user allows it), `axes` (names of the axes of `vmap` and of processes), `distribution` (arrays on several devices or processes),
`check` (well-formedness of jaxprs), `dce` (dead-code elimination), `leaks` (traced values that outlive their trace), `html` (what
notebooks show).
"""
