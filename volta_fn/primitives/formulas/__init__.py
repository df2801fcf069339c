"""Mathematical functions as formulas over `Values`, each written once.

NumPy evaluates them, and every target generates code from them. They hold for every argument: infinities, NaN, both zeros, subnormal
numbers, in float32 and in float64, without branches unless a docstring says otherwise. Polynomials were fitted by Lawson's algorithm
(float32; each coefficient rounded in turn, the later ones refitted) and Chebyshev interpolation (float64).

In the order in which to read: `values` (what formulas are written over), `numpy_values` (NumPy arrays as such, and arithmetic as NumPy
evaluates it), `exponential` (also logarithms, powers, and operations that are exact), `trigonometric`, `error`, `gamma`,
`incomplete` (gamma and beta functions), `hypergeometric` (with exponential integrals), `special` (Bessel functions and other integrals),
`complex_numbers` and `ciphers` (random bits).
"""
