"""Primitives that move elements without computing with them.

`movement` has reshape, transpose, broadcast and reverse; `slicing` has slices, concatenation and padding; `dynamic_slicing` has slices that
start where the running program says; and `gather` has gather and scatter.
"""
