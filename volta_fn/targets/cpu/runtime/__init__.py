"""Running compiled programs.

In the order in which to read: `executor` (a program as commands, and the machine code that runs them), `host_calls` (functions of NumPy
among the commands), `pool` (threads that share a launch's tasks), `fingerprint` (traced programs as texts), `cache` (the cache on disk),
`artifact` (compiled programs as data, and their entries in that cache), and `program` (a program as a function of NumPy arrays, compiled or
loaded). The rest is loaded for programs that are not in the cache: `code_cache` (the machine code of each routine), `compile` (lowered
programs to commands), and `timed` (programs that note the time of each item).
"""
