"""Transform shaders: each function takes a `ShaderModule` and returns one.

`fuse` joins independent dispatches horizontally, `split_bindings` binds large arrays several times, and `partial_dispatch` runs some of a
shader's workgroups. They act on finished modules because only then it is known which dispatches are independent and how large arrays are.
"""
