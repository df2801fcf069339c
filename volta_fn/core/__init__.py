"""The foundation: avals, arrays, devices, primitives, traces, jaxprs.

In the order in which to read:

- `caches` (what runs calls, by the types of their arguments, and values by weak references), `aval` (abstract values: shapes and dtypes),
  `dimension` (symbolic sizes), `promotion` (of dtypes: silent, warned of, or refused), `device`, `array`, `memory` (transfers, donation,
  DLPack), `dispatch` (keys of eager calls);
- `primitive` (operations and their rules), `trace` (interpreters of operations: the current one evaluates, differentiates, batches or
  records them), `jaxpr` (programs as data, their check, and dead-code elimination), `staging` (functions traced to jaxprs), `refs` (mutable
  references);
- `named_axes` (of examples or processes), `distribution` (meshes and shardings), `placement` (arrays on several devices) and `process` (the
  rank of this process).
"""
