"""Running compiled programs.

In the order in which to read: `executor` (a program as commands, and the machine code that runs them), `pool` (threads that share a
launch's tasks), `cache` (the cache on disk), `artifact` (compiled programs as data, and their entries in that cache, by traced programs
as texts), and `program` (a program as a function of NumPy arrays, compiled or loaded, and functions of NumPy among its commands). The
rest is loaded for programs that are not in the cache: `compile` (lowered programs to commands, and the machine code of each routine), and
`timed` (programs that note the time of each item).
"""
