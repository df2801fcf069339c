"""Machine code through LLVM.

`text` writes LLVM IR, with arithmetic of indices. `host` describes the CPU that code is compiled for, and `machine` compiles and loads it,
and binds functions of NumPy and SciPy for it.
"""
