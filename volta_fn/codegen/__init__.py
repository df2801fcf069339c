"""Generate code: what all targets' code generators share.

Shared code is written once, for printers, which each target implements. In the order in which to read:

- `scalars`: the printer of index arithmetic, with constant folding, and how cumulative operations combine elements; operations of
  integers and bool over `Values`, the printer of numbers, and sort keys (integers in the order of numbers);
  formulas of floats are in `primitives.formulas`;
- `windows`: sliding windows, those of gathers and scatters, and Winograd's transforms over `Algebra`, the printer of sums and multiples;
- `loops`: loops over kernels, namely the emission of nodes, accumulators, and passes over rows.
"""
