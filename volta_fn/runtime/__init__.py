"""Support code shared by the runtimes of several targets.

`llvm` writes and compiles machine code: the CPU target's routines, and the GPU target's replay of command lists. `caches` has the cache on
disk, `entries` what its files hold and the fingerprints of programs by which they are named; `threads` has threads of Python, protects
compilations from signals, forks and the process's end, and compiles repeated functions in the background. `system` has the operating
system's functions that machine code calls: POSIX's, and those of Windows.

Three modules save microseconds by relying on the internals of CPython, NumPy, llvmlite or Linux. Each checks when it is loaded that it
finds what it relies on; if not, it does the same through public interfaces. `tests/runtime` runs both ways.

- `fastcall` relies on CPython's METH_FASTCALL and the layout of NumPy's arrays; it saves 20 µs of every call of a program. Else: `ctypes`.
  It also relies on where CPython keeps attributes that are slots, and on NumPy's table of C functions; it saves 0.4 µs of every call of a
  jitted function. Else: Python's own lookups.
- `result_allocator` relies on NumPy's table of C functions and the context variable of its allocator; it saves the page faults of large
  results, 8 ms for 32 MiB. Else: `numpy.empty`.
- `native_calls` relies on NumPy's error state being one context variable; it saves 3 µs of every operation (else: `numpy.errstate`). By
  names and parameters of llvmlite's C functions it lets several threads compile at once (else: one at a time). By Linux's `sched_getcpu`
  and `pthread_setaffinity_np` it saves up to 10 ms when a worker wakes up (else: the system chooses the CPU).
"""
