"""Say where elements are, for all code generators.

It has `strides`, windows at index vectors (`window_offsets`), sliding `windows`, and rows of `cumulative` operations.
"""
