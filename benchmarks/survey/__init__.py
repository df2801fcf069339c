"""A survey of functions, called eagerly and jitted, beside NumPy and JAX: `python -m benchmarks.survey`.

`rows` and `tables` say which functions there are and how they are called, `contestants` times them in a process for each framework, and
`__main__` takes turns and reports.
"""
