"""Machine code through LLVM.

`text` writes LLVM IR, with arithmetic of indices. `host` describes the CPU that code is compiled for, `machine` compiles it, and
`libraries` binds NumPy's sorts and SciPy's BLAS and LAPACK for it.
"""
