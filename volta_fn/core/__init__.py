"""The foundation: avals, arrays, devices, primitives, traces, jaxprs.

In the order in which to read:

- `caches` (what runs calls, by the types of their arguments, and values by weak references), `aval` (abstract values: shapes with
  numbers or symbols, dtypes, and their promotion), `dimension` (sizes that are symbols, and which of two such sizes is larger);
- `devices` (what runs programs, and which part of an array lies where) and `arrays` (values on a device);
- `primitive` (operations and their rules), `trace` (interpreters of operations: the current one evaluates, differentiates, batches or
  records them; and the axes that `vmap` and `shard_map` bind), `jaxpr` (programs as data, their check, and dead-code elimination),
  `staging` (users' functions of pytrees as functions of flat arrays, traced to jaxprs; jitted functions as transforms see them;
  `make_jaxpr`),
  `refs` (mutable references).
"""
