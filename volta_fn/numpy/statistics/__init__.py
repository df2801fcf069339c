"""Functions that combine elements: `reductions`, `nan_reductions`, `cumulative`, `moments`, `quantiles` and `histograms`."""
