"""Elementwise functions.

`arithmetic` has arithmetic, rounding and extrema, exponentials and trigonometric functions, and `logic` comparisons and
functions of bits.
"""
