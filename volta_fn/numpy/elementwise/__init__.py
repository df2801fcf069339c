"""Elementwise functions.

`arithmetic` has arithmetic, rounding and extrema, `transcendental` exponentials and trigonometric functions, and `logic` comparisons and
functions of bits.
"""
