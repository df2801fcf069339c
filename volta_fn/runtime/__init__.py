"""What the runtimes of several targets share.

`llvm` writes and compiles machine code: the CPU target's routines, and the GPU target's replay of command lists. `internals` holds what
saves microseconds by relying on the internals of CPython, NumPy, llvmlite or Linux. `cache_dir` is the folder of the cache on disk,
`cache_entries` its files, `repeated` compiles in the background what is called repeatedly, `compiling` protects what compiles from
signals, forks and the process's end; `recent` is a cache of what was used last, `threads` has threads of Python, `out_of_memory`
makes a typed error of NumPy's, `accountant` limits the memory of the CPU's arrays, and `variables` reads numbers from the environment.
"""
