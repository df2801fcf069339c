"""Operators, methods and indexing of arrays, built from primitives.

`operators` has Python's (`+`, `//`, `divmod`, …) and compositions by JAX's names. ``x[…]`` is parsed, checked and read by
`array_indexing`, and written by `array_updates`. `ref_views` reads and writes parts of references.
"""
