"""Compile jaxprs to programs, independent of any target: passes, fusion, lowering.

`target` says what a target offers. `passes` rewrite a jaxpr into a simpler one, `ir` defines kernels (loop nests over scalar operations),
`fusion` groups equations into kernels, and `lowering` turns a jaxpr into a program for a target. `attention` recognises attention, and
`contractions` describes matrix products and convolutions for all targets.
"""
