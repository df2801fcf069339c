"""Running compiled programs.

In the order in which to read: `executor` (a program as commands, and the machine code that runs them), `pool` (threads that share a
launch's tasks), `support_code` (both, compiled, with what `runtime.internals` adds), `disk_cache` (the cache on disk), `fingerprint` (a
traced program as text), `program_cache` (compiled programs in the cache, by that text), `host_interrupts` (Ctrl-C where a program calls
Python's functions), and `program` (a program as a function of NumPy arrays). The rest is loaded for programs that are not in the cache:
`code_cache` (routines, compiled and loaded), `host_calls` (equations that NumPy evaluates), `compile` (lowered programs to commands), and
`timed` (programs that note the time of each item).
"""
