"""Pooling: the maxima, means and norms of windows of the spatial axes.

`sliding` pools windows of one size at a constant distance, returns the positions of their maxima, and puts maxima back there. `adaptive`
pools to a given output size, also by windows at random distances.
"""
