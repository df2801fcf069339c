"""Approximations of the functions that CPUs do not have, in float32 and float64, without branches but where it is said.

Each takes and gives `Values` and holds for every argument: infinities, NaN, both zeros, subnormal numbers. Polynomials were fitted by
Lawson's algorithm (float32; each coefficient rounded in turn, the later ones refitted) and Chebyshev interpolation (float64).

They are in `exponential`, `logarithm`, `trigonometric`, `hyperbolic`, `powers`, `integer_powers`, `error`, `normal`, `gamma`, `bessel` and
`remainder`, with the help of `error_free` (rounding errors), `payne_hanek` (large angles) and `in_float64` (computing in float64); `table`
has all by name.
"""
