"""Mathematical functions as formulas over `Values`, each written once.

NumPy evaluates them, and every target generates code from them.

They hold for every argument: infinities, NaN, both zeros, subnormal numbers, in float32 and in float64, without branches unless a
docstring says otherwise. Polynomials were fitted by Lawson's algorithm (float32; each coefficient rounded in turn, the later ones refitted)
and Chebyshev interpolation (float64).

In the order in which to read: `values` (what formulas are written over), `numpy_values` (NumPy arrays as such), `precision` (rounding
errors, and computing in float64); `exponential`, `logarithm`, `trigonometric` (with `payne_hanek` for large angles), `powers`,
`remainder`, `error`, `gamma`, `bessel`; `floats` (operations that are exact or rounded once), `complex_numbers`, `threefry`, `philox`.
`numpy_rules` is arithmetic as NumPy evaluates it.

Integrals and sums: `dawson`, `oscillating_integrals` (Fresnel, sine, cosine), `exponential_integrals`, `spence`, `owens_t`, `faddeeva` and
`hypergeometric`. Distributions: `normal_quantile`, `stirling` (densities), `gamma_quotients`, `incomplete_gamma` and `incomplete_beta`;
`power_transforms`. Loops over terms have lengths that follow from the arguments, never from whether a term is small: they end for all.
"""
