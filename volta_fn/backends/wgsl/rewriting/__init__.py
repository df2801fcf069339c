"""Shaders made of other shaders' texts, whose `form` is known: text in, text out.

`sections` binds large arrays several times, `portion` does some of a shader's workgroups, and `horizontal` fuses independent shaders, of
which equal ones share a text that chooses its buffers (`choosing`).

Finished texts are rewritten because only then it is known which shaders are fused, and how large arrays are; and as hand-written routines
access buffers by their names, those accesses would have to be found in any case.
"""
