"""Primitives that move elements without computing with them.

`movement` (reshape, transpose, broadcast, reverse), `joining`, `slicing`, `dynamic_slicing`, `gather` and `scatter`, with `indexing`: what
these two share.
"""
