"""The instruction set: all primitives and their rules, by family.

Read `declare` first: the declaration of an elementwise primitive, from which its rules are derived. The families:

- `elementwise`; `formulas` has what its primitives compute, written once for NumPy and every target;
- `data_movement`: reshapes, joins, slices, gather and scatter;
- over many elements: `reduction`, `window`, `cumulative`, `sorting`, `contraction` (also of rows in groups), `quantized` (products
  with weights of 8 and 4 bits), `convolution`, `linalg` and `fourier`;
- programs within programs: `call` (those of `jit` and of attention, barriers, and callbacks to Python), `loops` (with conditionals) and
  `scan`;
- the rest: `random` and `collectives`.

`array_operations` has what arrays need as Python objects and is built from primitives: operators, ``x[…]`` and ``x.at[…]``.
"""
