"""JAX's surface: names and modules that exist because JAX has them.

No other package imports this one. `config` has JAX's settings, `process` its processes and platforms; `refused` has what refuses or
changes nothing.

Every module here is imported without `compat`, as `volta_fn.config`.
"""
