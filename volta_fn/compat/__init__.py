"""JAX's surface: names and modules that exist because JAX has them.

Nothing below imports this folder. `extend` is what libraries of transforms build on (new primitives and their rules), `experimental` and
`example_libraries` have JAX's packages of these names, `config` its settings, `process` its processes and platforms, `monitoring` its events,
`ffi` its foreign functions, which are refused. The other modules are stubs alone, which give names of other modules JAX's paths.

Every module here is imported without `compat`, as `volta_fn.experimental.sparse`.
"""
