"""What libraries of transforms use, as in `jax.extend` and `jax.interpreters`.

- `primitive` defines primitives of users; `ad`, `batching` and `lowering` hold their rules, as mappings from primitives.
- `core` has the types of programs and traces, `primitives` those of this package, `partial_eval` traces functions.
- `linear_util` wraps functions, `api_util` flattens them.
"""
