"""Shaders made of other shaders' texts, whose `form` is known: text in, text out.

`split_bindings` binds large arrays several times, `partial_dispatch` does some of a shader's workgroups, and `horizontal` fuses independent
shaders, of which equal ones share a text that chooses its buffers (`buffer_switch`).

Finished texts are rewritten because only then it is known which shaders are fused, and how large arrays are; and as hand-written routines
access buffers by their names, those accesses would have to be found in any case.
"""
