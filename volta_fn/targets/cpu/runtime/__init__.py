"""Running compiled programs.

In the order in which to read: `executor` (a program as commands, the machine code that runs them, and threads that share a launch's tasks),
`artifact` (the cache on disk, and compiled programs as data, its entries), and `program` (a program as a
function of NumPy arrays, compiled or loaded, and functions of NumPy among its commands). The rest is loaded for programs that are not in
the cache: `compile` (lowered programs to commands, the machine code of each routine, and programs that note the time of each item).
"""
