"""Machine code through LLVM.

`text` writes LLVM IR, `index_arith` arithmetic of indices in it; `host` describes the CPU it is compiled for, `machine` is the compiler,
`lapack` binds SciPy's functions for linear algebra, `numpy_sorts` NumPy's sorts, `half_rounding` a function that LLVM calls.
"""
