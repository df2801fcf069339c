"""The instruction set: every primitive, declared whole, one file a family.

Read `declare` first: what is declared of a primitive, and what is derived from that. The families:

- element by element: `arithmetic`, `comparison`, `exponential`, `trigonometric`, `special`, `fma`, `complex_parts`, `cast`, `selection`;
  `scalar_functions` are their meanings where NumPy has none;
- where elements are: `movement`, `joining`, `slicing`, `dynamic_slicing`, `gather` and `scatter` (with `indexing`, what both share);
- over many elements: `reduction`, `cumulative`, `sorting`, `contraction`, `convolution` (with `convolution_forms`), `window`
  (`geometry` is the arithmetic of windows), `linalg`;
- the rest: `random`, `control_flow`, `call`, `callbacks`, `collective`, `barriers`.

What is made of primitives and arrays cannot do without is here, too: `operators`, ``x[…]`` (`index_expression`, `array_indexing`,
`array_updates`) and `shorthand`.
"""
