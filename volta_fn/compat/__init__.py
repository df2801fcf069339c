"""JAX's surface: names and modules that exist because JAX has them.

No other package imports this one. `experimental` and `example_libraries` have JAX's packages of these names, `config` its settings, `process` its processes and platforms, and `monitoring` its
events. `refused` has what refuses or changes nothing. The other modules are stubs alone, which give other modules' names JAX's paths.

Every module here is imported without `compat`, as `volta_fn.experimental.sparse`.
"""
