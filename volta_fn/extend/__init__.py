"""The interface for libraries of transforms: `jax.extend` and `jax.interpreters`.

- `core` has the types of programs and traces, primitives that users define, and the primitives of this package by JAX's names.
- `interpreters` has the rules of primitives (derivatives, batching, lowering) as mappings from primitives, and traces functions.
- `functions` wraps and flattens functions, and has pytrees in which an array of random keys is a leaf.
- `ir` builds programs from operations by the names of MLIR and StableHLO.
- `key_arrays` moves elements of arrays of random keys. `dtypes` has dtypes by the names of `jax.dtypes`.
- `volta_fn.compat.refused` has types that raise an error or change nothing here.
"""
