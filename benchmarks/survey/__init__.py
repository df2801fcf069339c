"""A survey of functions, compared with NumPy and JAX.

`python -m benchmarks.survey` calls them eagerly and jitted.

`rows` and `tables` say which functions there are and how they are called, `contestants` times them in a process for each framework, and
`__main__` asks these in rotation, and reports.
"""
