"""LLVM IR as text (`text`), indices in it (`index_arith`), the machine that it is compiled for (`host`), the compiler (`machine`), and what
of it several threads may do at once (`nogil`).
"""
