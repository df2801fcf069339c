"""What arrays offer as Python objects, built from primitives.

`operators` (`+`, `//`, `divmod`, …), ``x[…]`` (`index_expression` parses it, `index_checks` compares it with the shape, `array_indexing`
reads, `array_updates` writes) and `shorthand`, compositions by JAX's names.
"""
