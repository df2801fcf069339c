"""Shaders made of other shaders' texts, whose `form` is known: text in, text out.

`sections` binds large arrays several times, `portion` does some of a shader's workgroups, and `beside` puts shaders side by side, of which
equal ones share a text that chooses its buffers (`choosing`).

That is done to finished texts because only then it is known who stands beside whom, and how large arrays are; and as hand-written routines
access buffers by their names, it must find those accesses in any case.
"""
