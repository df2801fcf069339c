"""Pooling: the maxima, means and norms of windows of the spatial axes.

`sliding` pools windows of one size at a constant distance, `power` by p-norms, `adaptive` to a given output size, `fractional` windows at
random distances. `positions` finds where maxima are, and `unpooling` puts them back there.
"""
