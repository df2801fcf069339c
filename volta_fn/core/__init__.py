"""The foundation: avals, arrays, devices, primitives, traces, jaxprs.

In the order in which to read: `aval` (abstract values: shapes and dtypes), `device`, `dlpack` (memory shared with other libraries),
`array`, `transfer` (between devices), `primitive` (operations and their rules), `trace` (interpreters of operations: the current one
evaluates, differentiates, batches or records them), `jaxpr` (programs as data), `staging` (functions traced to jaxprs), `flatten`
(functions of pytrees as functions of lists), `axes` (names of `vmap`'s axes), `check` (well-formedness of jaxprs), `dce` (dead-code
elimination), `html` (what notebooks show).
"""
