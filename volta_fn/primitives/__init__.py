"""The instruction set: all primitives and their rules, one file per family.

Read `declare` first: the declaration of an elementwise primitive, from which its rules are derived. The families:

- elementwise: `arithmetic`, `comparison`, `exponential`, `trigonometric`, `special`, `complex_components`, `cast` (with `full_width`),
  `selection`;
  `formulas` has what they compute, written once for NumPy and every target;
- data movement: `movement`, `joining`, `slicing`, `dynamic_slicing`, `gather` and `scatter` (with `indexing`, what both share);
- over many elements: `reduction`, `cumulative`, `sorting`, `contraction` (with `ragged`), `convolution` (with `convolution_forms`),
  `window` (`geometry` is the arithmetic of windows), `linalg`, `fourier`;
- calls of sub-programs: `call`, `attention` (for which targets may have routines), and `control_flow`;
- the rest: `random` (with `philox`), `callbacks`, `collectives`, `barriers`.

Operations on arrays that are built from primitives and that arrays need are here, too: `operators`, ``x[…]`` (`index_expression`,
`index_checks`, `array_indexing`, `array_updates`) and `shorthand`.
"""
