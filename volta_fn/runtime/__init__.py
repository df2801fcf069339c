"""Support code shared by the runtimes of several targets.

`llvm` writes and compiles machine code: the CPU target's routines, and the GPU target's replay of command lists. `internals` has code that
saves microseconds by relying on the internals of CPython, NumPy, llvmlite or Linux. `caches` has the cache on disk, `compiling` protects
compilations from signals, forks and the process's end, and compiles repeated functions in the background; `threads` has threads of Python.
"""
