"""Functions that combine elements.

`reductions`, `nan_reductions`, `cumulative` (running sums, differences, integrals), `moments` (averages and covariances), `quantiles`
and `histograms`.
"""
