"""Quantised weights: numbers of 8 or 4 bits that share scales group by group.

`quantized_array` has the array that takes the place of a weight, and how its numbers are rounded; `quantize` puts such arrays into a
model, and rounds numbers in training as quantisation will. Products with quantised weights are one primitive
(`volta_fn/primitives/quantized.py`).
"""
