"""Code that saves microseconds by relying on other software's internals.

These are the internals of CPython, NumPy, llvmlite and Linux. Each module checks when it is loaded that it finds what it relies on; if not,
it does the same through public interfaces. `tests/runtime/internals` runs both ways.

- `fastcall` relies on CPython's METH_FASTCALL and the layout of NumPy's arrays; it saves 20 µs of every call of a program. Else: `ctypes`.
- `array_calls` relies on where CPython keeps attributes that are slots; it saves 0.4 µs of every eager call. Else: Python's own lookups.
- `finders` (with `call_keys`) and `eager_calls` rely on the same, and on NumPy's table of C functions: they save 0.3 to 3 µs of eager
  calls. Else: Python. `finders` relies on the version of CPython's dicts, too; it saves 0.07 µs of repeated calls. Else: a lookup.
- `eager_calls` relies, too, on the capsule in which NumPy gives compilers a ufunc's loop; it saves 0.3 µs of an eager call. Else: the
ufunc.
- `result_allocator` relies on NumPy's table of C functions and the context variable of its allocator; it saves the page faults of large
  results, 8 ms for 32 MiB. Else: `numpy.empty`.
- `threads` relies on NumPy's error state being one context variable; it saves 3 µs of every operation. Else: `numpy.errstate`.
- `threads` relies on names and parameters of llvmlite's C functions; it lets several threads compile at once. Else: one at a time.
- `threads` relies on Linux's `sched_getcpu` and `pthread_setaffinity_np`; it saves up to 10 ms when a worker wakes up. Else: the
  system chooses the CPU.
"""
